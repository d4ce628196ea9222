"""What a bundle needs at run time beside kvc's runtime: libraries, or PyTorch.

In: the program of one of a bundle's recipes. Out: a report on each thing that is
needed, and a sentence. The program alone tells: which backends run its partitions, and
which instructions no backend runs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvc.runtime.delegates.table import library_of
from kvc.runtime.execution.delegate import PYTORCH
from kvc.schema.left import left_of
from kvc.schema.model import Program
from kvc.schema.text import escape, plural

_NAMED: Final = 3  # ops of which many instructions are left


@dataclass(frozen=True, slots=True)
class NeedReport:
    """A library that a recipe's methods need at run time, or PyTorch.

    Attributes:
        name: name of the library.
        install: the command that installs the library, "" for a backend of another
            package.
        backends: backends that need the library.
        left: operator -> number of its instructions that no backend runs, most frequent
            first; empty for any library but PyTorch.
    """

    name: str
    install: str
    backends: tuple[str, ...] = ()
    left: Mapping[str, int] = field(default_factory=dict)


def describe_needs(program: Program) -> tuple[NeedReport, ...]:
    """Return a report on each library that a program needs, PyTorch last."""
    found: dict[str, NeedReport] = {}
    for backend in program.backends:
        needed = library_of(backend)
        if needed is not None:
            known = found.get(needed.name, NeedReport(needed.name, needed.install))
            users = (*known.backends, backend)
            found[needed.name] = replace(known, backends=users)
    torch = found.pop(PYTORCH.name, NeedReport(PYTORCH.name, PYTORCH.install))
    counts = Counter[str]()
    for method in program.methods:
        counts.update(left_of(method))
    torch = replace(torch, left=dict(counts.most_common()))
    used = torch.left or torch.backends
    return (*found.values(), *([torch] if used else []))


def needs_text(needs: Sequence[NeedReport]) -> str:
    """Say in one line what is needed, and how to install it."""
    return "; ".join(map(_text, needs)) or "nothing beside kvc's runtime and numpy"


def _text(need: NeedReport) -> str:
    text = escape(need.name) + f" (`{need.install}`)" * bool(need.install)
    if not need.left:
        return text
    uses = [f"the backend {backend}" for backend in need.backends]
    uses.append(plural(sum(need.left.values()), "instruction"))
    return f"{text} for {' and '.join(uses)} ({ops_text(need.left)})"


def ops_text(left: Mapping[str, int]) -> str:
    """Name the most frequent ops of instructions that no backend runs."""
    return ", ".join(list(left)[:_NAMED]) + ", ..." * (len(left) > _NAMED)
