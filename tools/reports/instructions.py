"""The instructions of a method as stable text, with the code inside its delegates.

Also functions on instructions for other reports: the values among an instruction's
arguments, the state that holds a value, and the line and module of the user's model
that an instruction comes from.

The text is like the compiler's: `%3 = op(arguments): type`. After the type stands
where the result is stored: `at 128` (offset in the scratch arena) or `in %1` (the
memory of `%1`: the result is a view of `%1` or overwrites it). After `#` stand the
user's source line and the call's accesses: the value whose memory the call writes, the
`AccessMode`, axis and size. The last lines are the method's results and what it adds
to cursors.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvc.schema.control import read_control
from kvc.schema.dtypes import DType
from kvc.schema.graph import (
    Access,
    Alias,
    Argument,
    Caller,
    Constant,
    CursorSlot,
    Graph,
    Instruction,
    Item,
    Ref,
    Scratch,
    StateSlot,
    Value,
)
from kvc.schema.model import Advance, Method, Program, Update
from kvc.schema.ops import CONTROL_OPS
from kvc.schema.text import escape
from kvc.tools.text import in_runs

_SOURCE: Final = re.compile(r"(?P<line>[^ ]*)(?: \((?P<module>.*)\))?")


def state_of(graph: Graph, value: int) -> int | None:
    """Return the id of the state whose memory holds a value, None if no state does."""
    storage = graph.values[graph.root_of(value)].storage
    return storage.state if isinstance(storage, StateSlot) else None


def operands(arguments: tuple[object, ...]) -> tuple[int, ...]:
    """Return the ids of the values among an instruction's arguments, in order."""
    found: list[int] = []
    for argument in arguments:
        items = argument if isinstance(argument, tuple) else (argument,)
        found.extend(item.value for item in items if isinstance(item, Ref))
    return tuple(found)


def line_of(source: str) -> str:
    """Return the source line in the user's model, "" if it is unknown."""
    return _part(source, "line")


def module_of(source: str) -> str:
    """Return the path of the module in the user's model, "" if it is unknown."""
    return _part(source, "module")


def _part(source: str, part: str) -> str:
    found = _SOURCE.fullmatch(source)
    return (found and found[part]) or ""


@dataclass(frozen=True, slots=True)
class InstructionReport:
    """An instruction; `delegate` is the code of the delegate or blocks that it runs."""

    op: str
    text: str
    source: str
    writes: tuple[str, ...]
    delegate: tuple["InstructionReport", ...]


@dataclass(frozen=True, slots=True)
class ListingReport:
    """A method's code: its initial values, calls, results, and additions to cursors."""

    method: str
    values: tuple[str, ...]
    instructions: tuple[InstructionReport, ...]
    returns: str
    advances: tuple[str, ...]


def describe_listing(program: Program, method: Method) -> ListingReport:
    """Return the code of a method."""
    graph = method.graph
    names = [data.name for data in program.names]
    states = [state.name for state in program.states]
    return ListingReport(
        method=method.name,
        values=tuple(_given(graph, method.input_names, names, states)),
        instructions=tuple(_calls(program, method, graph, method.updates)),
        returns=_returns(graph),
        advances=tuple(_advance(method, advance) for advance in method.advances),
    )


def _given(
    graph: Graph,
    input_names: Sequence[str],
    names: Sequence[str],
    states: Sequence[str],
) -> Iterator[str]:
    """Yield a line for each value that no instruction produces."""
    for id_, name in zip(graph.inputs, input_names, strict=True):
        yield f"%{id_} = input {escape(name)}: {_typed(graph.values[id_])}"
    for index, value in enumerate(graph.values):
        if isinstance(value.storage, Constant):
            name = escape(names[value.storage.name])
            yield f"%{index} = constant {name}: {value.type}"
        elif isinstance(value.storage, StateSlot):
            name = escape(states[value.storage.state])
            yield f"%{index} = state {name}: {value.type}"
        elif isinstance(value.storage, CursorSlot):
            yield f"%{index} = {_typed(value)}"


def _returns(graph: Graph) -> str:
    return ", ".join(f"%{value}" for value in graph.outputs)


def _advance(method: Method, advance: Advance) -> str:
    tokens = "what its loops decide" if advance.tokens is None else advance.tokens
    text = f"cursor {advance.cursor} by {tokens}"
    if advance.lengths is None:
        return text
    return f"{text}, of which {escape(method.input_names[advance.lengths])} count"


def _calls(
    program: Program, method: Method, graph: Graph, updates: Sequence[Update]
) -> Iterator[InstructionReport]:
    written = {update.instruction: update.accesses for update in updates}
    for index, call in enumerate(graph.instructions):
        yield _report(program, method, graph, call, written.get(index, ()))


def _block(
    program: Program, method: Method, number: int, lent: Sequence[int]
) -> Iterator[InstructionReport]:
    """Yield the code of a block, whose values have numbers of their own."""
    block = method.blocks[number]
    graph = block.graph
    names = [data.name for data in program.names]
    runner = escape(_runner(program, method, number))
    yield _line(f"block {number}{runner}")
    given = [f"(the %{value} around it)" for value in lent]
    for line in _given(graph, given, names, ()):
        yield _line(f"  {line}")
    for made in _calls(program, method, graph, block.updates):
        yield replace(made, text=f"  {made.text}", delegate=())
        yield from (replace(one, text=f"    {one.text}") for one in made.delegate)
    yield _line(f"  return {_returns(graph)}")


def _runner(program: Program, method: Method, block: int) -> str:
    """Name the backend that runs a block, if any, and what it added to the code."""
    for partition in program.delegates:
        if partition.block == block and program.methods[partition.method] is method:
            nbytes = f", with {len(partition.payload):,} bytes of its own"
            return f", run by the backend {partition.backend}" + nbytes * bool(
                partition.payload
            )
    return ""


def _line(text: str) -> InstructionReport:
    return InstructionReport("", text, "", (), ())


def _report(
    program: Program,
    method: Method,
    graph: Graph,
    call: Instruction,
    accesses: Sequence[Access],
) -> InstructionReport:
    inside: tuple[InstructionReport, ...] = ()
    if call.op in CONTROL_OPS:
        control = read_control(call.op, call.arguments)
        inside = tuple(
            line
            for number in control.blocks
            for line in _block(program, method, number, operands((control.operands,)))
        )
    writes = tuple(map(_write, accesses))
    results = in_runs(f"%{value}" for value in call.results)
    types = in_runs(_typed(graph.values[value]) for value in call.results)
    arguments = ", ".join(_arguments(call))
    text = f"{call.op}({arguments})"
    if results:
        text = f"{results} = {text}: {types}"
    return InstructionReport(call.op, escape(text), call.source, writes, inside)


def _write(access: Access) -> str:
    text = f"%{access.root} {access.mode.name}"
    return text if access.axis is None else f"{text} axis {access.axis}: {access.size}"


def _typed(value: Value) -> str:
    """Return a value's type, and its place in memory unless another column has it."""
    match value.storage:
        case CursorSlot(cursor, field):
            return f"{value.type}, the {field.name.lower()} of cursor {cursor}"
        case Scratch(offset=offset):
            return f"{value.type} at {offset}"
        case Alias(base=base):
            return f"{value.type} in %{base}"
        case Constant() | StateSlot():
            return str(value.type)
        case Caller():
            return f"{value.type} in the caller's array"


def _arguments(call: Instruction) -> Sequence[str]:
    if call.op not in CONTROL_OPS:
        return [_argument(argument) for argument in call.arguments]
    *first, over = call.arguments  # for each result the operand that it lies over
    assert isinstance(over, tuple)
    places = in_runs("None" if i is None else f"%{i}" for i in over).replace("%", "")
    return [*map(_argument, first), f"[{places}]"]


def _argument(argument: Argument) -> str:
    if isinstance(argument, tuple):
        return f"[{in_runs(_item(item) for item in argument)}]"
    return _item(argument)


def _item(item: Item) -> str:
    match item:
        case Ref(value=value):
            return f"%{value}"
        case DType():
            return item.label
        case str():
            return f"'{escape(item)}'"
        case _:
            return str(item)
