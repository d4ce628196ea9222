"""The methods: what each takes and returns, how much code, which states.

Sizes that a call chooses are named in the types; `SymbolReport` has their bounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvc.schema.control import computes, graphs_within
from kvc.schema.graph import Graph
from kvc.schema.left import left_of
from kvc.schema.model import Delegate, Method, Program
from kvc.schema.text import escape, plural

_ANY: Final = "any"
_NAMED: Final = 3  # ops of which many instructions are left


@dataclass(frozen=True, slots=True)
class TensorReport:
    """An input or output; outputs have no name."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class SymbolReport:
    """A size that is chosen at run time, with inclusive bounds.

    Attributes:
        sizes: the only ones that it has; empty for all within the bounds.
    """

    name: str
    lower: int
    upper: int
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodReport:
    """A method as a caller sees it; `backends` has one entry for each delegate.

    Attributes:
        advance: tokens that a call adds to the position, "" where it adds none, "any"
            where loops decide how many.
        row_lengths: the input with the row lengths, else "".
        instructions: all of them, those of partitions, branches and loops too.
        left: op -> how many of its instructions no backend runs, most frequent first.
            Without views and control flow, which compute nothing.
        computing: how many instructions compute, by backends and by PyTorch.
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


def describe_methods(program: Program) -> tuple[MethodReport, ...]:
    """Return a report on each method, in the order of the file."""
    return tuple(_describe(program, method) for method in program.methods)


def _describe(program: Program, method: Method) -> MethodReport:
    graph = method.graph
    named = zip(method.input_names, graph.inputs, strict=True)
    return MethodReport(
        name=method.name,
        role=method.role,
        inputs=tuple(TensorReport(name, _type(graph, i)) for name, i in named),
        outputs=tuple(TensorReport("", _type(graph, i)) for i in graph.outputs),
        symbols=_symbols(program, graph),
        instructions=sum(len(one.instructions) for one in method.graphs),
        backends=tuple(
            partition.backend for partition in delegates_of(program, method)
        ),
        reads=tuple(program.states[i].name for i in method.reads),
        writes=tuple(program.states[i].name for i in method.writes),
        advance=_advance(method),
        row_lengths=""
        if method.row_lengths is None
        else method.input_names[method.row_lengths],
        left=left_of(method),
        computing=_computing(program, method),
    )


def _computing(program: Program, method: Method) -> int:
    inside = sum(
        computes(graph, step, delegated=True)
        for partition in delegates_of(program, method)
        for graph in graphs_within(method, partition.block)
        for step in graph.instructions
    )
    return inside + sum(left_of(method).values())


def _advance(method: Method) -> str:
    advance = method.advance_of(0)
    if advance is None:
        return ""
    return _ANY if advance.tokens is None else str(advance.tokens)


def delegates_of(program: Program, method: Method) -> tuple[Delegate, ...]:
    """Return the delegates of a method, in the order of the file."""
    partitions = program.delegates
    return tuple(
        partition
        for partition in partitions
        if program.methods[partition.method] is method
    )


def _type(graph: Graph, value: int) -> str:
    return str(graph.values[value].type)


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


def method_lines(methods: Sequence[MethodReport]) -> list[str]:
    """Lay the methods out: signature, sizes, code."""
    if not methods:
        return ["  none"]
    return [line for method in methods for line in _lines(method)]


def _bounds(symbol: SymbolReport) -> str:
    if symbol.sizes:
        return f"{escape(symbol.name)} in {', '.join(map(str, symbol.sizes))}"
    return f"{symbol.lower} <= {escape(symbol.name)} <= {symbol.upper}"


def _lines(method: MethodReport) -> list[str]:
    role = f"   role {escape(method.role)}" if method.role else ""
    inputs = ", ".join(f"{escape(i.name)}: {escape(i.type)}" for i in method.inputs)
    outputs = ", ".join(escape(o.type) for o in method.outputs) or "nothing"
    lines = [f"  {escape(method.name)}({inputs}) -> {outputs}{role}"]
    lines += [f"      {_bounds(symbol)}" for symbol in method.symbols]
    if method.row_lengths:
        row_lengths, tokens = escape(method.row_lengths), escape(method.advance)
        said = f"of {tokens} tokens {row_lengths} says how many count in each row"
        if tokens == "1":
            said = f"{row_lengths} says which rows take part"
        lines.append(f"      {said}; left out: all")
    if method.advance == _ANY:
        lines.append("      its loops decide how many tokens it adds to the position")
    lines.append(f"      {_code(method)}; {_states(method)}")
    if method.backends:
        lines.append(f"      {left_text(method.left)}")
    return lines


def _code(method: MethodReport) -> str:
    text = instructions_text(method.computing, method.instructions)
    for backend in dict.fromkeys(method.backends):
        calls = plural(method.backends.count(backend), "call")
        text += f", {calls} of the backend {escape(backend)}"
    return text


def instructions_text(computing: int, all_of_them: int) -> str:
    """Say how many instructions compute, and how many there are with those that do not.

    Args:
        computing: of them.
        all_of_them: views, calls and what moves elements too.
    """
    text = plural(computing, "instruction")
    return text + f" ({all_of_them:,} with views)" * (all_of_them > computing)


def left_text(left: Mapping[str, int]) -> str:
    """Say how many instructions no backend runs, and of which ops the most are."""
    if not left:
        return "none left to PyTorch"
    named = list(left)[:_NAMED]
    ops = ", ".join(named) + (", ..." if len(left) > _NAMED else "")
    return f"{sum(left.values())} left to PyTorch ({ops})"


def _states(method: MethodReport) -> str:
    reads, writes = set(method.reads), set(method.writes)
    if reads == writes:
        return (
            f"reads and writes {plural(len(reads), 'state')}" if reads else "no state"
        )
    if not reads or not writes:
        verb = "reads" if reads else "writes"
        return f"{verb} {plural(len(reads | writes), 'state')}"
    return f"reads {plural(len(reads), 'state')}, writes {plural(len(writes), 'state')}"
