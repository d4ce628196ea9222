"""The memory of a program: states, writes to them, and planned scratch.

In: a program. Out: reports with exact bytes, every size at its upper bound. Whether a
write to a state or to a caller's array copies is the compiler's verdict, which the
file stores. SAFE: only the written elements are copied. COPY: the instructions that
the verdict names copy more bytes so that the write, or the caller, gets its value. The
peak of scratch memory is computed again from the instructions; its formula gives the
peak for other sizes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kvc.schema.control import read_control
from kvc.schema.graph import Graph, Instruction, Ref, Scratch
from kvc.schema.model import Block, Method, Program
from kvc.schema.ops import CONTROL_OPS
from kvc.schema.rings import Window
from kvc.schema.types import Affine, Symbol, TensorType, bounds
from kvc.tools.reports.instructions import operands, state_of
from kvc.tools.reports.methods import delegates_of

Polynomial = Mapping[tuple[str, ...], int]


@dataclass(frozen=True, slots=True)
class StateReport:
    """A state of a session; `nbytes` counts every size at its upper bound.

    Attributes:
        initial: name of the data that the state starts with, or "zeros".
        reads, writes: methods that read and methods that write the state.
        at_position: whether every write begins at the program's position.
        window: of a ring buffer, the number of tokens that a query attends to; null if
            there is no fixed number.
    """

    name: str
    type: str
    nbytes: int
    kind: str
    axis: int | None
    initial: str
    reset: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    at_position: bool
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class PositionReport:
    """Where the program's position comes from.

    Attributes:
        capacity: the greatest position, with every size at its upper bound; null if
            nothing limits the position.
        chosen: name of the size that a session chooses and that limits the position, ""
            if the limit is fixed.
    """

    kind: str
    source: str
    capacity: int | None
    chosen: str


def describe_states(program: Program) -> tuple[StateReport, ...]:
    """Return a report on each state, in the order of the file."""
    symbols = {symbol.name: symbol for symbol in program.symbols}
    return tuple(
        StateReport(
            name=state.name,
            type=str(state.type),
            nbytes=state.type.max_nbytes(symbols),
            kind=state.kind.name.lower(),
            axis=state.axis,
            initial="zeros"
            if state.initial is None
            else program.names[state.initial].name,
            reset=state.reset.name.lower(),
            reads=tuple(m.name for m in program.methods if index in m.reads),
            writes=tuple(m.name for m in program.methods if index in m.writes),
            at_position=state.at_position,
            window=state.window,
        )
        for index, state in enumerate(program.states)
    )


def describe_position(program: Program) -> PositionReport | None:
    """Return where the position comes from, None when the program has none."""
    position = program.position
    if position is None:
        return None
    kind, limit = position.kind.name.lower(), position.capacity
    if limit is None:
        return PositionReport(kind, position.name, None, "")
    symbols = {one.name: replace(one, upper=one.greatest) for one in program.symbols}
    chosen = "" if isinstance(limit, int) else str(limit)
    return PositionReport(kind, position.name, bounds(limit, symbols)[1], chosen)


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """A write to a state or a caller's array, with every size at its upper bound."""

    method: str
    state: str
    verdict: Literal["SAFE", "COPY"]
    bytes_per_call: int
    reason: str
    source: str


def describe_copies(program: Program) -> tuple[UpdateReport, ...]:
    """Return a report on each write, in running order."""
    symbols = {symbol.name: symbol for symbol in program.symbols}
    return tuple(
        report
        for method in program.methods
        for report in _reports(
            method,
            Block(method.graph, method.updates),
            _names(program, method),
            symbols,
        )
    )


def _names(program: Program, method: Method) -> dict[int, str]:
    """Map values in memory that outlives the method to the name of state or input."""
    graph = method.graph
    named = zip(graph.inputs, method.input_names, strict=True)
    names = {value: f"input {name}" for value, name in named}
    for value in range(len(graph.values)):
        state = state_of(graph, value)
        if state is not None and graph.root_of(value) == value:
            names[value] = program.states[state].name
    return names


def _reports(
    method: Method, code: Block, names: Mapping[int, str], symbols: Mapping[str, Symbol]
) -> Iterator[UpdateReport]:
    """Yield a report on each write of a method or block, and of the blocks it runs.

    Args:
        method: method that the code belongs to.
        code: code of the method, or one of its blocks.
        names: values in memory that outlives the method -> name of the state or input.
        symbols: the program's symbols by name.
    """
    graph = code.graph
    for update in code.updates:
        call = graph.instructions[update.instruction]
        roots = dict.fromkeys(graph.root_of(value) for value in call.results)
        homes = [names[root] for root in roots if root in names]
        inside = list(_inside(method, graph, call, names, symbols))
        if homes and (update.copies or not inside):
            yield UpdateReport(
                method=method.name,
                state=", ".join(homes),
                verdict="COPY" if update.copies else "SAFE",
                bytes_per_call=copied_nbytes(graph, update.copies, symbols),
                reason=update.reason,
                source=call.source,
            )
        yield from inside


def _inside(
    method: Method,
    graph: Graph,
    call: Instruction,
    names: Mapping[int, str],
    symbols: Mapping[str, Symbol],
) -> Iterator[UpdateReport]:
    """Yield the reports on the blocks that a call runs, if it runs any."""
    if call.op not in CONTROL_OPS:
        return
    control = read_control(call.op, call.arguments)
    lent = [ref.value for ref in control.operands if isinstance(ref, Ref)]
    for number in control.blocks:
        block = method.blocks[number]
        known = {
            block.graph.inputs[over]: names[root]
            for over in control.over
            if over is not None and (root := graph.root_of(lent[over])) in names
        }
        yield from _reports(method, block, known, symbols)


def copied_nbytes(
    graph: Graph, copies: Iterable[int], symbols: Mapping[str, Symbol]
) -> int:
    """Return the bytes that the instructions `copies` write, at the sizes' bounds."""
    return sum(
        graph.values[value].type.max_nbytes(symbols)
        for copy in copies
        for value in graph.instructions[copy].results
    )


@dataclass(frozen=True, slots=True)
class WorkspaceReport:
    """Memory that a backend's library allocates itself, within a stated bound."""

    backend: str
    kind: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class MethodMemory:
    """Memory of one method, in bytes, with every size at its upper bound.

    Attributes:
        planned: size of the scratch arena.
        peak_live: the most bytes in use at one time, as the file states them; no plan
            can be smaller.
        peak_at: the instruction at which the most bytes are in use, "" if none are.
        formula: bytes in use at `peak_at`, as a formula of the sizes that a call
            chooses.
        states: bytes of the states that the method reads or writes.
        workspaces: memory of each delegate's library.
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
        """Return the bytes of the largest workspace; workspaces share memory."""
        return max((one.nbytes for one in self.workspaces), default=0)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory of a program.

    Attributes:
        scratch: bytes of the largest scratch arena; all methods share one arena.
        states: bytes of the states of one session.
        workspace: bytes of the largest workspace; all delegates share one workspace.
        symbols: bounds of the sizes that are chosen at run time.
    """

    methods: tuple[MethodMemory, ...]
    scratch: int
    states: int
    workspace: int
    symbols: Mapping[str, tuple[int, int]]


def describe_memory(program: Program) -> MemoryReport:
    """Return the memory of each method and of the program."""
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
    """Return the instruction at which the most scratch is in use, and its values."""
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
    """Map each value that owns scratch memory to its first and last instruction.

    Both ends are included. Inputs live from instruction 0, outputs to the last
    instruction.
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


def nbytes_of(types: Iterable[TensorType]) -> Polynomial:
    """Return the sum of the bytes of tensors."""
    total: Counter[tuple[str, ...]] = Counter()
    for one in types:
        product: Polynomial = {(): one.dtype.itemsize}
        for dim in one.dims:
            product = _times(product, dim)
        total.update(product)
    return {factors: c for factors, c in total.items() if c}


def _times(polynomial: Polynomial, dim: int | Affine) -> Polynomial:
    terms: dict[tuple[str, ...], int] = {}
    if isinstance(dim, Affine):
        terms = {tuple(map(str, factors)): c for factors, c in dim.parts}
    terms[()] = dim.constant if isinstance(dim, Affine) else dim
    product: Counter[tuple[str, ...]] = Counter()
    for factors, a in polynomial.items():
        for more, b in terms.items():
            product[tuple(sorted(factors + more))] += a * b
    return product


def formula(polynomial: Polynomial) -> str:
    """Return a polynomial as text, highest powers first: `8*seq*seq + 512`."""
    ordered = sorted(polynomial.items(), key=lambda item: (-len(item[0]), item[0]))
    parts = ["*".join([str(c), *factors]) for factors, c in ordered]
    return " + ".join(parts).replace("+ -", "- ") or "0"
