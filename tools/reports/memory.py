"""How much memory a method needs: planned scratch, its lower bound, libraries.

The peak is computed again from the instructions: the moment at which most scratch bytes
are live, every size at its upper bound. Its formula says how it grows with the sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvc.schema.graph import Graph, Scratch
from kvc.schema.model import Method, Program
from kvc.schema.text import columns, escape, share, size
from kvc.schema.types import Symbol
from kvc.tools.reports.methods import delegates_of
from kvc.tools.reports.polynomials import formula, nbytes_of
from kvc.tools.reports.uses import operands


@dataclass(frozen=True, slots=True)
class WorkspaceReport:
    """Memory that a backend's library lays out itself, within a stated bound."""

    backend: str
    kind: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class MethodMemory:
    """Memory of one method, in bytes, with every size at its upper bound.

    Attributes:
        planned: size of the scratch arena.
        peak_live: most bytes live at one time, as the file states it; no plan can
            be smaller.
        peak_at: the instruction at which most is live, "" when nothing is.
        formula: bytes live there, as a formula of the sizes a call chooses.
        states: bytes of the states it touches.
        workspaces: one for each delegate.
    """

    method: str
    planned: int
    peak_live: int
    peak_at: str
    formula: str
    states: int
    workspaces: tuple[WorkspaceReport, ...]

    @property
    def workspace(self) -> int:
        """Return the largest of these, which share memory."""
        return max((one.nbytes for one in self.workspaces), default=0)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory of a program.

    Attributes:
        scratch: the largest of the methods, which share one arena.
        states: of one session.
        workspace: the largest of the delegates, which share it too.
        symbols: bounds of the sizes that are chosen at run time.
    """

    methods: tuple[MethodMemory, ...]
    scratch: int
    states: int
    workspace: int
    symbols: Mapping[str, tuple[int, int]]


def describe_memory(program: Program) -> MemoryReport:
    """Work out the memory of each method and of the whole."""
    symbols = {symbol.name: symbol for symbol in program.symbols}
    methods = tuple(_describe(program, m, symbols) for m in program.methods)
    return MemoryReport(
        methods=methods,
        scratch=max((m.planned for m in methods), default=0),
        states=sum(state.type.max_nbytes(symbols) for state in program.states),
        workspace=max((d.workspace_nbytes for d in program.delegates), default=0),
        symbols={s.name: (s.lower, s.upper) for s in program.symbols},
    )


def _describe(
    program: Program, method: Method, symbols: Mapping[str, Symbol]
) -> MethodMemory:
    graph = method.graph
    at, live = _peak(graph)
    touched = {*method.reads, *method.writes}
    return MethodMemory(
        method=method.name,
        planned=graph.scratch_nbytes,
        peak_live=graph.peak_nbytes,
        peak_at="" if at is None else f"{at}: {graph.instructions[at].op}",
        formula=formula(nbytes_of(graph.values[i].type for i in live)),
        states=sum(program.states[i].type.max_nbytes(symbols) for i in touched),
        workspaces=tuple(
            WorkspaceReport(d.backend, d.memory.name.lower(), d.workspace_nbytes)
            for d in delegates_of(program, method)
        ),
    )


def _peak(graph: Graph) -> tuple[int | None, list[int]]:
    """Return the instruction at which most scratch is live, and what is live then."""
    spans = lifetimes(graph)
    changes: dict[int, int] = {}
    for value, (first, last) in spans.items():
        nbytes = _scratch(graph, value)
        changes[first] = changes.get(first, 0) + nbytes
        changes[last + 1] = changes.get(last + 1, 0) - nbytes
    live = most = 0
    at: int | None = None
    for index in sorted(changes):
        live += changes[index]
        if live > most:
            most, at = live, index
    if at is None:
        return None, []
    at = min(max(at, 0), len(graph.instructions) - 1)
    return at, [v for v, (first, last) in spans.items() if first <= at <= last]


def lifetimes(graph: Graph) -> dict[int, tuple[int, int]]:
    """Return for each value with scratch of its own the first and last instruction.

    Both included; inputs are alive from instruction 0 on, outputs to the last one.
    """
    spans = {i: (0, 0) for i in graph.inputs if _scratch(graph, i)}
    for index, call in enumerate(graph.instructions):
        for value in (*operands(call.arguments), *call.results):
            root = graph.root_of(value)
            if _scratch(graph, root):
                first, _ = spans.get(root, (index, index))
                spans[root] = (first, index)
    for value in graph.outputs:
        root = graph.root_of(value)
        if root in spans:
            spans[root] = (spans[root][0], len(graph.instructions) - 1)
    return spans


def _scratch(graph: Graph, value: int) -> int:
    storage = graph.values[value].storage
    return storage.nbytes if isinstance(storage, Scratch) else 0


def memory_lines(report: MemoryReport) -> list[str]:
    """Lay out the memory of each method and of the whole, in exact bytes."""
    rows = [("method", "planned", "peak live", "over", "states", "backends")]
    rows += [_row(method) for method in report.methods]
    lines = columns(rows, "<>>>>>")
    for method in report.methods:
        if method.peak_at:
            name, at = escape(method.method), escape(method.peak_at)
            lines.append(f"  {name}: most is live at instruction {at}")
            lines.append(f"      {escape(method.formula)} bytes")
    for name, (lower, upper) in report.symbols.items():
        lines.append(f"  {lower} <= {escape(name)} <= {upper}; planned at {upper}")
    return [*lines, *_totals(report)]


def _row(method: MethodMemory) -> tuple[str, str, str, str, str, str]:
    over = share(method.planned - method.peak_live, method.peak_live)
    return (
        escape(method.method),
        f"{method.planned:,}",
        f"{method.peak_live:,}",
        over,
        f"{method.states:,}",
        f"{method.workspace:,}",
    )


def _totals(report: MemoryReport) -> list[str]:
    return [
        f"  one call at a time: {size(report.scratch)} of scratch, planned, and up to "
        f"{size(report.workspace)} that backends lay out themselves",
        f"  one session: {size(report.states)} of state",
    ]
