"""What memory a bundle takes at sizes that the caller chooses: `kvc dump --at`.

In: a program, sizes of its symbols, the number of tokens that a session holds. Out:
bytes of weights, states, scratch and the rest, computed from the file alone.

Memory is counted in touched pages: of scratch, the pages of the values at these sizes
and their planned offsets; of states, the pages of the slots that hold tokens. One
session is open, and its methods run one after the other.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from kvc.runtime.sessions.sizes import position_limit
from kvc.schema.backends.known import unwritten_by
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadSetting, UnknownName
from kvc.schema.graph import Graph, Ref, Scratch
from kvc.schema.left import left_of
from kvc.schema.model import Delegate, MemoryKind, Program, State, StateKind
from kvc.schema.text import columns, escape, plural, size
from kvc.schema.types import only_symbol
from kvc.tools.reports.blobs import held_weights

TOKENS: Final = "tokens"
THREADS: Final = "threads"
PROCESS_NBYTES: Final = 40_000_000  # Python 3.11, numpy and kvc (2026-11)
STEP_NBYTES: Final = 8000  # of an instruction: decoded, bound and named (2026-11)
LIBRARY_NBYTES: Final = 4_000_000  # of code that lays out its own memory (2026-11)
THREAD_NBYTES: Final = 300_000  # of each thread but the first (2026-11)
TORCH_NBYTES: Final = 205_000_000  # PyTorch 2.13 for CPUs beside these (2026-11)
_MOST_THREADS: Final = 1024
_PAGE: Final = 4096
_LAID_OUT: Final = 4  # bytes of an element, the most that any instruction set takes
# Products whose kernels lay their rows out anew, where these are of such a dtype.
_PRODUCTS: Final = (
    "aten::linear",
    "kvc::linear_qd8",
    "kvc::linear_qb4",
    "kvc::linear_q8",
    "kvc::linear_q4",
    "kvc::expert_linear",
    "kvc::expert_linear_q8",
    "kvc::expert_linear_qd8",
)
_LAID_OUT_DTYPES: Final = (DType.INT8, DType.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What memory a bundle takes, in bytes.

    Attributes:
        sizes: size of each symbol, as requested or as planned.
        tokens: number of tokens that a session holds in each row, 0 if nothing counts
            tokens.
        weights: bytes of the weights that methods use, each weight once. They are pages
            of files, which processes share and the system can drop. A table in which
            tokens are only looked up counts with the pages around the rows of the
            tokens that the session holds, or that a call is given if nothing counts
            tokens.
        packed: bytes of weights that a backend's library keeps in its own format, in
            memory of the process.
        states: bytes of the states of one session that holds `tokens` tokens.
        token: bytes of states that one token takes, before any ring buffer wraps
            around.
        scratch: bytes of the method that takes the most.
        backends: bytes that kvc planned inside partitions, plus the largest buffer in
            which its kernels rearrange rows of a product, plus upper bounds of what
            libraries allocate themselves, with every size at its upper bound.
        process: approximate bytes that Python, numpy, kvc, the program's own
            instructions, the threads and a backend's library take; and PyTorch, if no
            backend runs some instruction.
        torch: whether `process` includes PyTorch.
    """

    sizes: Mapping[str, int]
    tokens: int
    weights: int
    packed: int
    states: int
    token: int
    scratch: int
    backends: int
    process: int
    torch: bool

    @property
    def total(self) -> int:
        """Return the sum of all bytes."""
        own = (self.states, self.scratch, self.backends, self.process)
        return self.weights + self.packed + sum(own)


def describe_footprint(program: Program, wanted: Mapping[str, int]) -> Footprint:
    """Return what memory a program takes at some sizes.

    Args:
        program: the bundle's program.
        wanted: sizes of symbols by name; a symbol that is left out has its planned
            size. "tokens" is the number of tokens that a session holds, by default as
            many as it has room for, and "threads" the number of threads, by default 1.
            If a symbol has one of these two names, the entry means the symbol.

    Raises:
        UnknownName: `wanted` has a name that the program lacks.
        BadSetting: a size is out of bounds.
    """
    sizes = _sizes(program, wanted)
    asked = _no_symbols(program, wanted)
    tokens = _tokens(program, sizes, asked)
    threads = asked.get(THREADS, 1)
    _check_inside(THREADS, threads, 1, _MOST_THREADS)
    states = [state_nbytes(state, sizes, tokens) for state in program.states]
    each = [
        state_nbytes(state, sizes, 1) - state_nbytes(state, sizes, 0)
        for state in program.states
    ]
    planned = [
        (part.backend, _graph_of(part, program))
        for part in program.delegates
        if part.memory is MemoryKind.PLANNED
    ]
    opaque = (
        _workspace(part, _graph_of(part, program), sizes)
        for part in program.delegates
        if part.memory is MemoryKind.OPAQUE
    )
    held = [
        (one, program.blobs[blob].nbytes)
        for blob, one in held_weights(program, sizes, tokens).items()
    ]
    return Footprint(
        sizes=sizes,
        tokens=tokens,
        weights=sum(one.pages(nbytes) for one, nbytes in held),
        packed=sum(one.own(nbytes) for one, nbytes in held),
        states=sum(states),
        token=sum(each),
        scratch=_scratch([("", method.graph) for method in program.methods], sizes),
        backends=_scratch(planned, sizes)
        + _laid_out((graph for _, graph in planned), sizes)
        + max(opaque, default=0),
        process=_process(program, threads),
        torch=needs_torch(program),
    )


def largest_footprint(
    program: Program,
    wanted: Mapping[str, int],
    most: int,
    counted: Callable[[Footprint], int] = lambda found: found.total,
) -> Footprint | int:
    """Return the footprint with the greatest capacity that fits into `most` bytes.

    If no capacity fits, return the bytes of the smallest. Capacities below the number
    of tokens in `wanted` are not considered.

    Args:
        program: the bundle's program.
        wanted: sizes as for `describe_footprint`, without the capacity.
        most: limit in bytes.
        counted: returns the bytes of a footprint that the limit applies to.

    Raises:
        BadSetting: the program has no capacity that a session chooses, or `wanted`
            names the capacity.
        UnknownName, BadSetting: as `describe_footprint`.
    """
    name = chosen_capacity(program)
    if not name:
        total = size(describe_footprint(program, wanted).total)
        expected = "a program whose sessions choose a capacity"
        found = f"one without; it takes {total} at these sizes"
        raise BadSetting(name="--max-ram", expected=expected, found=found)
    if name in wanted:
        expected = f"--at without {name}, which it looks for"
        raise BadSetting(
            name="--max-ram", expected=expected, found=f"{name}={wanted[name]}"
        )
    (symbol,) = (s for s in program.symbols if s.name == name)

    def at(capacity: int) -> Footprint:
        return describe_footprint(program, {**wanted, name: capacity})

    def room(capacity: int) -> int:
        return position_limit(program, _sizes(program, {**wanted, name: capacity})) or 0

    capacities = symbol.sizes or range(symbol.lower, symbol.upper + 1)
    high = len(capacities) - 1
    held = _no_symbols(program, wanted).get(TOKENS, 0)
    low = bisect_left(capacities, held, hi=high, key=room)
    least = counted(at(capacities[low]))
    if least > most:
        return least
    while low < high:
        middle = (low + high + 1) // 2
        fits = counted(at(capacities[middle])) <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return at(capacities[low])


def chosen_capacity(program: Program) -> str:
    """Return the name of the capacity that a session chooses, "" for none."""
    position = program.position
    return (position and position.capacity and only_symbol(position.capacity)) or ""


def _sizes(program: Program, wanted: Mapping[str, int]) -> dict[str, int]:
    symbols = {symbol.name: symbol for symbol in program.symbols}
    sizes = {name: symbol.greatest for name, symbol in symbols.items()}
    for name, found in wanted.items():
        if name not in symbols:
            if name in (TOKENS, THREADS):
                continue
            tokens = (TOKENS,) if program.position else ()
            known = (*symbols, *tokens, THREADS)
            raise UnknownName(kind="size", name=name, known=known)
        _check_inside(name, found, symbols[name].lower, sizes[name])
        if not symbols[name].takes(found):
            raise BadSetting(name=name, expected=symbols[name].allowed, found=found)
        sizes[name] = found
    return sizes


def _no_symbols(program: Program, wanted: Mapping[str, int]) -> dict[str, int]:
    """Return the entries of `wanted` for tokens and threads that name no symbol."""
    symbols = {symbol.name for symbol in program.symbols}
    return {name: found for name, found in wanted.items() if name not in symbols}


def _tokens(
    program: Program, sizes: Mapping[str, int], asked: Mapping[str, int]
) -> int:
    """Return how many tokens a session holds."""
    if program.position is None:
        if TOKENS in asked:
            expected = "nothing: nothing in this program counts tokens"
            raise BadSetting(name=TOKENS, expected=expected, found=asked[TOKENS])
        return 0
    limit = position_limit(program, sizes)
    slots = [
        state.type.shape(sizes)[state.axis]
        for state in program.states
        if state.axis is not None and _follows_position(state)
    ]
    usual = max(slots, default=0) if limit is None else limit
    found = asked.get(TOKENS, usual)
    _check_inside(TOKENS, found, 0, 1 << 62 if limit is None else limit)
    return found


def _follows_position(state: State) -> bool:
    """Tell whether a state has a slot for each token or for each of the last ones."""
    return state.kind is not StateKind.PLAIN and state.cursor in (None, 0)


def _check_inside(name: str, found: int, least: int, most: int) -> None:
    if not least <= found <= most:
        raise BadSetting(name=name, expected=f"{least} to {most}", found=found)


def state_nbytes(state: State, sizes: Mapping[str, int], tokens: int) -> int:
    """Return the bytes of a state that holds `tokens` tokens.

    A state that does not grow by tokens, such as the cross caches of an encoder, counts
    with all its bytes.
    """
    shape = state.type.shape(sizes)
    whole = state.type.nbytes(sizes)
    axis = state.axis if _follows_position(state) else None
    if axis is None or not shape[axis]:
        return whole
    return whole // shape[axis] * min(tokens, shape[axis])


def _graph_of(part: Delegate, program: Program) -> Graph:
    return program.methods[part.method].blocks[part.block].graph


def _scratch(graphs: Iterable[tuple[str, Graph]], sizes: Mapping[str, int]) -> int:
    """Return the bytes of the pages that hold the scratch values of graphs.

    Args:
        graphs: pairs of the name of the backend that runs a graph, "" for none, and the
            graph.
        sizes: size of each symbol.
    """
    pages: set[tuple[int, int]] = set()
    for backend, graph in graphs:
        idle = unwritten_by(backend, graph)
        for number, value in enumerate(graph.values):
            if isinstance(value.storage, Scratch) and number not in idle:
                end = value.storage.offset + value.type.nbytes(sizes)
                if end > value.storage.offset:
                    pages.add((value.storage.offset // _PAGE, -(-end // _PAGE)))
    total = reached = 0
    for first, last in sorted(pages):
        total += max(0, last - max(first, reached))
        reached = max(reached, last)
    return total * _PAGE


def _workspace(part: Delegate, graph: Graph, sizes: Mapping[str, int]) -> int:
    """Return the bytes a library allocates for a partition, estimated by kvc's plan."""
    beyond = part.workspace_nbytes - graph.scratch_nbytes
    return beyond + min(graph.scratch_nbytes, _scratch([(part.backend, graph)], sizes))


def _laid_out(graphs: Iterable[Graph], sizes: Mapping[str, int]) -> int:
    """Return the most bytes in which a kernel rearranges the rows of one product."""
    rows = (
        graph.values[x.value].type
        for graph in graphs
        for step in graph.instructions
        if step.op in _PRODUCTS and isinstance(x := step.arguments[0], Ref)
    )
    found = (prod(x.shape(sizes)) for x in rows if x.dtype in _LAID_OUT_DTYPES)
    return _LAID_OUT * max(found, default=0)


def _process(program: Program, threads: int) -> int:
    graphs = (graph for method in program.methods for graph in method.graphs)
    steps = sum(len(graph.instructions) for graph in graphs)
    torch = TORCH_NBYTES if needs_torch(program) else 0
    opaque = any(part.memory is MemoryKind.OPAQUE for part in program.delegates)
    library = LIBRARY_NBYTES if opaque else 0
    others = THREAD_NBYTES * (threads - 1)
    return PROCESS_NBYTES + STEP_NBYTES * steps + others + library + torch


def needs_torch(program: Program) -> bool:
    """Tell whether PyTorch has to run some instruction because no backend does."""
    return any(map(left_of, program.methods))


def footprint_lines(found: Footprint) -> list[str]:
    """Lay a footprint out."""
    told = ", ".join(
        f"{escape(name)} = {number:,}" for name, number in found.sizes.items()
    )
    tokens = "of a session"
    if found.token:
        tokens = f"with {plural(found.tokens, 'token')}, {size(found.token)} each"
    process = f"Python,{' PyTorch,' if found.torch else ''} numpy and kvc"
    rows = [
        (size(found.weights), "weights: pages of files, shared between processes"),
        (size(found.packed), "weights as a backend's library packs them"),
        (size(found.states), f"states {tokens}"),
        (size(found.scratch), "scratch while a method runs"),
        (size(found.backends), "inside partitions that backends run"),
        (size(found.process), f"about: {process}"),
    ]
    return [
        f"MEMORY AT {told or 'fixed sizes'}: {size(found.total)}",
        *columns(rows, ">"),
    ]
