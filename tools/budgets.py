"""How many bytes a new bundle may take: `kvc compile --max-file`, `--max-ram`, ...

In: a bundle whose file is written but not yet renamed to its final name. Out: nothing,
or an error that says what takes the most, and which settings would take less.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvc.schema.container import SavedBundle
from kvc.schema.errors import BudgetExceeded
from kvc.schema.graph import Graph, Scratch
from kvc.schema.model import Program
from kvc.schema.text import columns, escape, families, plural, size
from kvc.tools.reports.blobs import held_weights
from kvc.tools.reports.footprint import (
    TOKENS,
    Footprint,
    chosen_capacity,
    describe_footprint,
    largest_footprint,
    state_nbytes,
)
from kvc.tools.reports.savings import describe_savings

_MOST: Final = 5  # lines about what takes the most


@dataclass(frozen=True, slots=True)
class Budgets:
    """Limits in bytes; None is no limit.

    Attributes:
        file: limit for the bundle and the data file that is written with it.
        ram: limit for a process that runs the bundle with one session, counted as by
            `kvc dump --at`.
        state: limit for the states of a session.
        sizes: sizes at which `ram` and `state` are counted, as `describe_footprint`
            takes them.
    """

    file: int | None
    ram: int | None
    state: int | None
    sizes: Mapping[str, int]

    def check(self, saved: SavedBundle) -> None:
        """Check a written bundle against the limits.

        Raises:
            BudgetExceeded: the bundle takes more than a limit allows.
            UnknownName, BadSetting: the program does not have the sizes in `sizes`.
        """
        if self.file is self.ram is self.state is None:
            return
        program = saved.program
        file = saved.nbytes + saved.data_nbytes + saved.packed_nbytes
        found = describe_footprint(program, self.sizes)
        savings = describe_savings(program, found.sizes, found.tokens)
        _check(
            ("the file", file, self.file),
            _blob_rows(
                program, {n: blob.nbytes for n, blob in enumerate(program.blobs)}
            ),
            [(one.setting, one.weights) for one in savings],
        )
        for body in program.bodies:
            recipe = escape(body.provenance.recipe)
            self._check_memory(body, f" of {recipe}" * bool(program.variants))

    def _check_memory(self, program: Program, recipe: str) -> None:
        """Check the memory of one recipe's program; `recipe` names it in messages.

        Raises:
            BudgetExceeded: the program takes more than a limit allows.
        """
        found = describe_footprint(program, self.sizes)
        savings = describe_savings(program, found.sizes, found.tokens)
        _check(
            (f"a session{_told(found)}", found.states, self.state),
            _state_rows(program, found),
            [(one.setting, one.states) for one in savings],
            self._longest(program, self.state, lambda one: one.states),
        )
        _check(
            (
                f"a process{recipe} with one session{_told(found)}",
                found.total,
                self.ram,
            ),
            _memory_rows(program, found),
            [(one.setting, one.memory) for one in savings],
            self._longest(program, self.ram, lambda one: one.total),
        )

    def _longest(
        self, program: Program, most: int | None, counted: Callable[[Footprint], int]
    ) -> str:
        """Name the greatest capacity that would fit, "" if none is known."""
        name = chosen_capacity(program)
        if most is None or not name:
            return ""
        sizes = {key: n for key, n in self.sizes.items() if key not in (name, TOKENS)}
        found = largest_footprint(program, sizes, most, counted)
        if isinstance(found, int):
            return ""
        number = found.sizes[name]
        return f"{escape(name)}={number:,} would fit, for all that it holds"


def _check(
    said: tuple[str, int, int | None],
    rows: Iterable[tuple[str, int]],
    savings: Iterable[tuple[str, int]],
    fits: str = "",
) -> None:
    """Raise if more is taken than is allowed.

    Args:
        said: name of what is counted, bytes that it takes, bytes that are allowed.
        rows: names of parts, and the bytes that each takes.
        savings: settings, and the bytes that each would save.
        fits: sentence about a capacity that would fit, "" for none.
    """
    what, nbytes, allowed = said
    if allowed is None or nbytes <= allowed:
        return
    most = sorted(rows, key=lambda row: -row[1])[:_MOST]
    lines = ["the most of it:", *columns(_sized(most), "><")]
    less = [row for row in savings if row[1] > 0]
    if less:
        less.sort(key=lambda row: row[1])
        lines += ["other settings would save:", *columns(_sized(less), "><")]
    raise BudgetExceeded(
        what=what,
        nbytes=nbytes,
        allowed=allowed,
        listing="\n".join([*lines, *[f"  {fits}"] * bool(fits)]),
    )


def _sized(rows: Iterable[tuple[str, int]]) -> list[tuple[str, str]]:
    return [(size(nbytes), text) for text, nbytes in rows]


def _told(found: Footprint) -> str:
    """Return the sizes at which memory is counted, as text."""
    told = [f"{escape(name)} = {number:,}" for name, number in found.sizes.items()]
    if found.token:
        told.append(plural(found.tokens, "token"))
    return f" at {', '.join(told)}" * bool(told)


def _blob_rows(
    program: Program, nbytes_of: Mapping[int, int]
) -> Iterator[tuple[str, int]]:
    """Yield names and bytes of blobs; names that differ only in numbers are one row."""
    first = {named.blob: named for named in reversed(program.names)}
    blobs = [(first[blob], nbytes) for blob, nbytes in nbytes_of.items()]
    found = families(
        blobs, lambda one: one[0].name, lambda one: (str(one[0].type), one[1])
    )
    for pattern, group in found:
        yield (
            f"{escape(pattern)}: {group[0][0].type}",
            sum(nbytes for _, nbytes in group),
        )


def _state_rows(program: Program, at: Footprint) -> Iterator[tuple[str, int]]:
    found = families(program.states, lambda s: s.name, lambda s: str(s.type))
    for pattern, group in found:
        nbytes = sum(state_nbytes(s, at.sizes, at.tokens) for s in group)
        yield f"{escape(pattern)}: {group[0].type}", nbytes


def _memory_rows(program: Program, at: Footprint) -> Iterator[tuple[str, int]]:
    """Yield names and bytes of what a process holds in memory: tensors and the rest."""
    held = held_weights(program, at.sizes, at.tokens)
    nbytes = [blob.nbytes for blob in program.blobs]
    taken = {n: one.pages(nbytes[n]) + one.own(nbytes[n]) for n, one in held.items()}
    yield from _blob_rows(program, taken)
    yield from _state_rows(program, at)
    methods = [method.graph for method in program.methods]
    partitions = [
        program.methods[part.method].blocks[part.block].graph
        for part in program.delegates
    ]
    yield f"scratch of methods{_widest(methods, at.sizes)}", at.scratch
    within = "scratch of partitions that backends run"
    yield f"{within}{_widest(partitions, at.sizes)}", at.backends
    yield "the process itself, about", at.process


def _widest(graphs: Iterable[Graph], sizes: Mapping[str, int]) -> str:
    """Name the largest scratch tensor of some graphs."""
    found = [
        (graph.values[value].type.nbytes(sizes), str(graph.values[value].type), step)
        for graph in graphs
        for step in graph.instructions
        for value in step.results
        if isinstance(graph.values[value].storage, Scratch)
    ]
    if not found:
        return ""
    nbytes, kind, step = max(found, key=lambda one: one[0])
    place = f" at {escape(step.source)}" if step.source else ""
    return f", in which {size(nbytes)} are {kind} of {escape(step.op)}{place}"
