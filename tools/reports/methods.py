"""The methods: what each takes and returns, and who runs its instructions.

In: a program. Out: reports on methods, on the partitions that backends run, and on
operators. Sizes that a call chooses are named in the types; `SymbolReport` has their
bounds. The program alone tells which operators backends run, and why other operators
are left to PyTorch: from the backends that the recipe names, from the contents of
their partitions, and from the lists of operators that each backend takes
(`kvc.schema.backends`). The reports leave out views and control flow, which compute
nothing. They also leave out the instructions that move elements between partitions,
which numpy runs if nothing is left to PyTorch.
"""

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from kvc.schema.backends.known import NO_OPTIONS, why_apart, why_left
from kvc.schema.backends.operands import Arguments, Results, arguments_of
from kvc.schema.control import blocks_run, computes, graphs_within, left_to_torch
from kvc.schema.graph import Graph, Instruction, StateSlot
from kvc.schema.left import left_of
from kvc.schema.model import Delegate, Method, Program
from kvc.schema.ops import APPEND, CONTROL_OPS, DELEGATE
from kvc.schema.uses import count_unpacked, is_packed

ANY_ADVANCE: Final = "any"
Offered = Mapping[str, Mapping[str, object]]  # a backend's options, by name
_Kind = tuple[str, str, tuple[tuple[str, str], ...]]  # op, backend, reasons


@dataclass(frozen=True, slots=True)
class TensorReport:
    """An input or output of a method; outputs have no name."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class SymbolReport:
    """A size that is chosen at run time, with inclusive bounds.

    Attributes:
        sizes: the only values that the size can have; empty if it can have every value
            within the bounds.
    """

    name: str
    lower: int
    upper: int
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodReport:
    """A method's interface and work; `backends` has one entry for each delegate.

    Attributes:
        advance: number of tokens that a call adds to the position, "" if it adds none,
            "any" if loops decide the number.
        row_lengths: name of the input with the row lengths, "" if there is none.
        instructions: number of all instructions, including those in partitions,
            branches and loops.
        left: operator -> number of its instructions that no backend runs, most frequent
            first. Views and control flow, which compute nothing, are left out.
        computing: number of instructions that compute, in backends and in PyTorch.
        lists: number of bound lists, by which a method runs without Python.
    """

    name: str
    role: str
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    symbols: tuple[SymbolReport, ...]
    instructions: int
    backends: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    advance: str = ""
    row_lengths: str = ""
    left: Mapping[str, int] = field(default_factory=dict)
    computing: int = 0
    lists: int = 0


def describe_methods(program: Program) -> tuple[MethodReport, ...]:
    """Return a report on each method, in the order of the file."""
    return tuple(_describe(program, method) for method in program.methods)


def _describe(program: Program, method: Method) -> MethodReport:
    graph = method.graph
    named = zip(method.input_names, graph.inputs, strict=True)
    delegates, left, advance = delegates_of(program, method), left_of(method), ""
    if (step := method.advance_of(0)) is not None:
        advance = ANY_ADVANCE if step.tokens is None else str(step.tokens)
    return MethodReport(
        name=method.name,
        role=method.role,
        inputs=tuple(
            TensorReport(name, str(graph.values[i].type)) for name, i in named
        ),
        outputs=tuple(
            TensorReport("", str(graph.values[i].type)) for i in graph.outputs
        ),
        symbols=_symbols(program, graph),
        instructions=sum(len(one.instructions) for one in method.graphs),
        backends=tuple(partition.backend for partition in delegates),
        reads=tuple(program.states[i].name for i in method.reads),
        writes=tuple(program.states[i].name for i in method.writes),
        advance=advance,
        row_lengths=""
        if method.row_lengths is None
        else method.input_names[method.row_lengths],
        left=left,
        computing=sum(_count_computing(method, one.block) for one in delegates)
        + sum(left.values()),
        lists=_count_lists(program, method),
    )


def _count_lists(program: Program, method: Method) -> int:
    lists = () if program.bounds is None else program.bounds.lists
    return sum(program.methods[one.method].name == method.name for one in lists)


def _count_computing(method: Method, partition: int) -> int:
    return sum(
        computes(graph, step, delegated=True)
        for graph in graphs_within(method, partition)
        for step in graph.instructions
    )


def delegates_of(program: Program, method: Method) -> tuple[Delegate, ...]:
    """Return the delegates of a method, in the order of the file."""
    return tuple(
        partition
        for partition in program.delegates
        if program.methods[partition.method] is method
    )


def _symbols(program: Program, graph: Graph) -> tuple[SymbolReport, ...]:
    used = {
        name
        for value in (*graph.inputs, *graph.outputs)
        for dim in graph.values[value].type.dims
        if not isinstance(dim, int)
        for name in dim.symbols
    }
    return tuple(
        SymbolReport(symbol.name, symbol.lower, symbol.upper, symbol.sizes)
        for symbol in program.symbols
        if symbol.name in used
    )


@dataclass(frozen=True, slots=True)
class DelegateReport:
    """A partition of a method that a backend runs.

    Attributes:
        method: method that the partition belongs to.
        block: number of the method's block that holds the partition's code.
        backend: name of the backend.
        instructions: number of instructions in the partition's code, including views.
        payload_nbytes: bytes of the payload that the backend adds to the code.
        names: number of weights that the partition reads.
        weights_nbytes: bytes of the weights, each blob once.
        packed_nbytes: bytes of the packed copies of the weights, 0 if the bundle has
            none.
        memory: "planned" if kvc planned the workspace, "opaque" if the backend's
            library allocates it.
        workspace_nbytes: upper bound of the workspace in bytes.
        tail_nbytes: bytes that must be readable after each input and output.
        computing: number of instructions that compute; views do not.
    """

    method: str
    block: int
    backend: str
    instructions: int
    payload_nbytes: int
    names: int
    weights_nbytes: int
    packed_nbytes: int
    memory: str
    workspace_nbytes: int
    tail_nbytes: int
    computing: int = 0


def describe_delegates(program: Program) -> tuple[DelegateReport, ...]:
    """Return a report on each delegate, in the order of the file."""
    plain = count_unpacked(program)
    return tuple(
        DelegateReport(
            method=method.name,
            block=partition.block,
            backend=partition.backend,
            instructions=sum(
                len(graph.instructions)
                for graph in graphs_within(method, partition.block)
            ),
            payload_nbytes=len(partition.payload),
            names=sum(name < plain for name in partition.names),
            weights_nbytes=_nbytes(program, partition.names, packed=False),
            packed_nbytes=_nbytes(program, partition.names, packed=True),
            memory=partition.memory.name.lower(),
            workspace_nbytes=partition.workspace_nbytes,
            tail_nbytes=partition.tail_nbytes,
            computing=_count_computing(method, partition.block),
        )
        for partition in program.delegates
        for method in [program.methods[partition.method]]
    )


def _nbytes(program: Program, names: Sequence[int], packed: bool) -> int:
    """Return the bytes of the plain or of the packed blobs under `names`."""
    blobs = {
        program.names[name].blob
        for name in names
        if is_packed(program.names[name]) is packed
    }
    return sum(program.blobs[blob].nbytes for blob in blobs)


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """The instructions of one operator in a method that the same backend runs.

    Attributes:
        method: method whose code or blocks contain the instructions.
        op: name of the operator.
        backend: backend that runs the instructions, "" for PyTorch.
        count: number of instructions.
        reasons: each backend that comes before `backend` in the recipe -> why it does
            not run the instructions.
    """

    method: str
    op: str
    backend: str
    count: int
    reasons: Mapping[str, str] = field(default_factory=dict)


def describe_operators(program: Program) -> tuple[OperatorReport, ...]:
    """Return the reports, sorted by method, by backend and by falling count."""
    given = options_offered(program)
    names = backends_offered(program)
    offered = {each: given if each == names[0] else NO_OPTIONS for each in names}
    reports: list[OperatorReport] = []
    for index, method in enumerate(program.methods):
        counts = Counter[_Kind](_inside(program, index, offered))
        for graph, used in graphs_outside(program, index):
            counts.update(_outside(graph, used, offered))
        ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        reports += [
            OperatorReport(method.name, op, backend, count, dict(reasons))
            for (op, backend, reasons), count in ranked
        ]
    return tuple(reports)


def backends_offered(program: Program) -> tuple[str, ...]:
    """Return the backends that the recipe names, in its order.

    Return no backends if the recipe is not valid TOML, which only a file made by hand
    can contain.
    """
    named = _backend_of_recipe(program)
    said = [named[key] for key in ("name", "rest") if isinstance(named.get(key), str)]
    return tuple(dict.fromkeys(name for name in said if name))


def options_offered(program: Program) -> Mapping[str, object]:
    """Return the recipe's options for its first backend."""
    options = _backend_of_recipe(program).get("options")
    return options if isinstance(options, dict) else NO_OPTIONS


def _backend_of_recipe(program: Program) -> dict[str, Any]:
    try:
        named = tomllib.loads(program.provenance.recipe_text).get("backend")
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}
    return named if isinstance(named, dict) else {}


def _inside(program: Program, method: int, offered: Offered) -> Iterator[_Kind]:
    """Yield a method's instructions in partitions, and why earlier backends refused."""
    beside = {
        block: used
        for graph, used in graphs_outside(program, method)
        for block in blocks_run(graph, DELEGATE)
    }
    for partition in program.delegates:
        if partition.method != method:
            continue
        earlier = [*takewhile(partition.backend.__ne__, offered)]
        if len(earlier) == len(offered):
            earlier = []  # of a recipe that does not name it
        used = beside[partition.block]
        for graph in graphs_within(program.methods[method], partition.block):
            for step in graph.instructions:
                if not computes(graph, step, delegated=True):
                    continue
                reasons = {
                    name: _why(name, graph, step, name in used, offered[name])
                    for name in earlier
                }
                yield step.op, partition.backend, tuple(reasons.items())


def graphs_outside(
    program: Program, method: int
) -> Iterator[tuple[Graph, frozenset[str]]]:
    """Yield a method's graphs outside partitions, and the backends that each calls."""
    code: Method = program.methods[method]
    owners = {d.block: d.backend for d in program.delegates if d.method == method}
    graphs = [code.graph]
    for graph in graphs:
        for op in CONTROL_OPS - {DELEGATE}:
            graphs += [code.blocks[number].graph for number in blocks_run(graph, op)]
        yield graph, frozenset(owners[i] for i in blocks_run(graph, DELEGATE))


def _outside(graph: Graph, used: frozenset[str], offered: Offered) -> Iterator[_Kind]:
    """Yield a graph's instructions outside partitions, and why each backend refused."""
    for step in left_to_torch(graph):
        reasons = {
            name: _why(name, graph, step, name in used, options)
            for name, options in offered.items()
        }
        yield step.op, "", tuple(reasons.items())


def takes_the_rest(program: Program, backend: str) -> bool:
    """Tell whether a backend's operator list covers everything left to PyTorch."""
    return not any(
        _lengthens_an_array(graph, step)
        or why_left(backend, step.op, *_signature(graph, step), True)
        for index in range(len(program.methods))
        for graph, _ in graphs_outside(program, index)
        for step in left_to_torch(graph)
    )


def _lengthens_an_array(graph: Graph, step: Instruction) -> bool:
    """Tell whether a step appends to an array that is no state; no partition can."""
    root = graph.root_of(step.results[0]) if step.op == APPEND else None
    return root is not None and not isinstance(graph.values[root].storage, StateSlot)


def _why(
    backend: str,
    graph: Graph,
    step: Instruction,
    used: bool,
    options: Mapping[str, object],
) -> str:
    reason = why_left(backend, step.op, *_signature(graph, step), used, options)
    return reason or why_apart(backend, step.op)


def _signature(graph: Graph, step: Instruction) -> tuple[Arguments, Results]:
    results = [graph.values[value].type for value in step.results]
    return arguments_of(graph, step), results
