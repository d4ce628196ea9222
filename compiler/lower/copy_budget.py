"""The copy budget: a limit on the bytes that writing the states of a method copies."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kvc.compiler.ir import Method, Node, Program
from kvc.compiler.passes.axis_writes import axis_write
from kvc.compiler.place import Verdict
from kvc.compiler.request.feedback import warn_caller
from kvc.schema.errors import CompileError, CopyBudgetExceeded, listing, meant
from kvc.schema.model import StateKind
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing


def check_budgets(methods: Sequence[str], budget: Mapping[str, int]) -> None:
    """Check the copy budgets that the caller gives, before anything is traced.

    Args:
        methods: names of the methods to compile.
        budget: method -> bytes that a call may copy.

    Raises:
        CompileError: a budget is for a method that is not compiled, or is no number of
            bytes.
    """
    for method, allowed in budget.items():
        if method not in methods:
            near, known = meant(method, methods), listing(list(methods))
            message = f"max_copy_bytes: there is no method {method!r}{near}; "
            raise CompileError(message=f"{message}methods: {known}")
        if type(allowed) is not int or allowed < 0:
            expected = "expected an int of 0 or more"
            raise CompileError(
                message=f"max_copy_bytes of {method}: {expected}, found {allowed!r}"
            )


def check_copy_budget(
    verdicts: Mapping[str, Sequence[Verdict]], budget: Mapping[str, int]
) -> None:
    """Check that no method copies more bytes than its budget.

    Args:
        verdicts: the verdicts on the writes of each method.
        budget: method -> bytes that a call may copy when every size has its greatest
            value.

    Raises:
        CopyBudgetExceeded: a method exceeds its budget; the error lists its copies, the
            largest first, and the bytes that changes to the model would save.
    """
    for method, allowed in budget.items():
        nbytes = sum(verdict.nbytes for verdict in verdicts[method])
        if nbytes > allowed:
            lines = "\n".join([*_lines(verdicts[method]), *_changes(verdicts[method])])
            raise CopyBudgetExceeded(
                method=method, nbytes=nbytes, allowed=allowed, listing=lines
            )


def _lines(verdicts: Sequence[Verdict]) -> list[str]:
    copies = sorted((v for v in verdicts if v.nbytes), key=lambda v: -v.nbytes)
    return [
        f"  {v.memory}: {v.nbytes:,} bytes{f' at {v.source}' if v.source else ''}: "
        f"{v.reason}"
        for v in copies
    ]


def _changes(verdicts: Sequence[Verdict]) -> list[str]:
    """List changes of the model's code, with the bytes that each saves, most first."""
    saved: dict[tuple[str, str], int] = defaultdict(int)
    for v in verdicts:
        if v.nbytes and v.remedy:
            saved[v.source, v.remedy] += v.nbytes
    if not saved:
        return []
    changes = sorted(saved.items(), key=lambda change: -change[1])
    return [
        "changes that would save these:",
        *(
            f"  {nbytes:,} bytes{f' at {source}' if source else ''}: {remedy}"
            for (source, remedy), nbytes in changes
        ),
    ]


# Warn of states that a model seems to use as caches, but a session cannot.


_SCATTERS: Final = frozenset(
    {"aten::index_copy", "aten::index_put", "aten::scatter.src", CACHE_UPDATE}
)
_WHOLE: Final = frozenset({"aten::copy", "aten::clone"})


class PlainCache(UserWarning):
    """A state is written like a cache but not declared as one; the text says why."""


def warn_of_plain_caches(program: Program) -> None:
    """Warn of states that are written like caches but are not declared as caches."""
    plain = {
        state.name
        for state in program.states
        if len(state.type.dims) > 2
        and (state.kind is StateKind.PLAIN or not program.cursors)
    }
    places = {
        name: node.source
        for method in program.methods
        if method.role in ("prefill", "decode")
        for name, node in _writes(method, plain)
    }
    if places:
        warn_caller(PlainCache(_text(places)))


def _text(places: Mapping[str, str]) -> str:
    (first, place), *others = places.items()
    which = f"state {first}" + (f" (and {len(others)} more)" if others else "")
    where = f" at {place}" if place else ""
    return (
        f"{which} is written like a cache{where}, but kvc cannot prove that it is "
        "written at the position of the call's tokens: a session does not know its "
        "capacity and cannot be rewound, and a generation that fills it ends in an "
        "error. Write it with "
        "torch.ops.kvc.cache_update(cache, new, position), or with index_copy_ at "
        "position + torch.arange(n), with a position that every method which writes it "
        "advances by its tokens"
    )


def _writes(method: Method, names: set[str]) -> Iterator[tuple[str, Node]]:
    """Yield (state name, node) for each node that writes tokens into a named state.

    A state that other kinds of nodes also change is left out. For example, a method
    with a sliding window also moves the content of the state, so the state never fills
    up.
    """
    held = {value.id: name for value, name in method.state_in if name in names}
    makers = method.makers()
    found = []
    for node in method.nodes:
        name = held.get(node.inputs[0].id) if node.inputs else None
        if name is None:
            continue
        is_view = OPS[node.op].aliasing is Aliasing.VIEW
        if is_view or node.op in _SCATTERS or node.op in _WHOLE:
            held.update((value.id, name) for value in node.outputs)
        if node.op in _SCATTERS and not _is_constant(node, makers):
            found.append((name, node))
    kept = {name for value, name in method.state_out if held.get(value.id) == name}
    yield from ((name, node) for name, node in found if name in kept)


def _is_constant(node: Node, makers: Mapping[int, Node]) -> bool:
    """Tell whether a node writes the same positions in each call."""
    write = axis_write(node, lean=True)
    index = None if write is None else makers.get(write.index.id)
    return index is not None and not index.inputs
