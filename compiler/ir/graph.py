"""The IR's values: programs, methods, nodes. All frozen; passes build new ones.

A method is a list of nodes in running order over values in SSA form. Nothing is ever
overwritten in the IR: a cache write is a node with a new value, and a state is one
value at the method's start (`state_in`) and a different value at its end (`state_out`).
Memory is assigned to values later, in side tables.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from kvc.compiler.weights.sources import Source
from kvc.schema.dtypes import DType
from kvc.schema.graph import CursorSlot
from kvc.schema.model import Cursor, StateKind
from kvc.schema.rings import Window
from kvc.schema.types import Affine, Dim, Symbol, TensorType


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor; `id` is unique in its method."""

    id: int
    type: TensorType


Item = Value | int | float | bool | str | DType | Affine | None
Argument = Item | tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an op of `kvc.schema.ops`.

    Attributes:
        op: full name of the op.
        arguments: one argument for each parameter of the op.
        outputs: the values that the node computes.
        source: `package.module:line (module path)` of the user's code, or "".
    """

    op: str
    arguments: tuple[Argument, ...]
    outputs: tuple[Value, ...]
    source: str = ""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Return the values among the arguments, in order."""
        return tuple(values_in(self.arguments))


@dataclass(frozen=True, slots=True)
class Method:
    """An entry point, or a block that a node runs; see `ir/control.py`.

    Attributes:
        name, role: the method's name and role, as the user gave them.
        inputs: values that the caller provides.
        input_names: a name for each input, for messages.
        position: name of the input that a session fills with its position, or "".
        input_tree, output_tree: how arguments and results nest (`kvc.schema.trees`).
        constants: (value, name of the constant that the value is).
        state_in: (value, name of the state whose content at the start is the value).
        state_out: (value, name of the state whose content at the end is the value), for
            changed states.
        input_out: (value, name of the input whose array the value is written to), if a
            method changes the caller's arrays.
        nodes: the nodes, in running order.
        outputs: values that are returned to the caller.
        block: the number of a block, unique in the program; None for an entry point.
        filled: the inputs of a block that are slices of operands. Slices are copied
            into memory of the block; all other inputs lie in the caller's memory.
        cursor_in: (value, the cursor's field that the value holds).
        advances: (cursor, number of tokens that a call adds to the cursor, name of the
            input that gives the number for each row, or "").
        in_place: whether a block can overwrite an input while it reads the input; False
            for the partitions of a backend whose library cannot.
        adapts: name of the method of which this is the body for adapters, or "".
    """

    name: str
    role: str
    inputs: tuple[Value, ...]
    input_names: tuple[str, ...]
    position: str
    input_tree: str
    output_tree: str
    constants: tuple[tuple[Value, str], ...]
    state_in: tuple[tuple[Value, str], ...]
    state_out: tuple[tuple[Value, str], ...]
    input_out: tuple[tuple[Value, str], ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    block: int | None = None
    filled: tuple[int, ...] = ()
    cursor_in: tuple[tuple[Value, CursorSlot], ...] = ()
    advances: tuple[tuple[int, Dim | None, str], ...] = ()
    in_place: bool = True
    adapts: str = ""

    @property
    def bound(self) -> tuple[Value, ...]:
        """Return the values that are constants, old states or cursor fields."""
        named = self.constants + self.state_in
        return (*(v for v, _ in named), *(v for v, _ in self.cursor_in))

    @property
    def results(self) -> tuple[Value, ...]:
        """Return every value that is needed after the last node has run."""
        kept = self.state_out + self.input_out
        return self.outputs + tuple(value for value, _ in kept)

    def makers(self) -> dict[int, Node]:
        """Return value id -> the node that computes it."""
        return {value.id: node for node in self.nodes for value in node.outputs}

    def reads(self) -> Counter[int]:
        """Return value id -> how often nodes and the method's results use the value."""
        read = (value.id for node in self.nodes for value in node.inputs)
        return Counter(chain(read, (value.id for value in self.results)))

    def next_id(self) -> int:
        """Return an id above all ids in use."""
        ids = [v.id for v in (*self.inputs, *self.bound)]
        ids += [v.id for node in self.nodes for v in node.outputs]
        return max(ids, default=-1) + 1


@dataclass(frozen=True, slots=True)
class Constant:
    """Data that never changes.

    Attributes:
        name: unique in the program.
        type: dtype and shape, without symbols.
        source: the source of the constant's bytes; equal sources give equal data.
        provenance: its origin: "parameter", "buffer", "literal" or a pass.
    """

    name: str
    type: TensorType
    source: Source
    provenance: str


@dataclass(frozen=True, slots=True)
class State:
    """Memory that outlives a call.

    Attributes:
        name: unique in the program.
        type: dtype and shape. Sizes can contain symbols whose sizes a session fixes;
            the size along `grows` is the greatest possible.
        initial: name of the constant with the state's initial content; None means
            zeros.
        grows: the axis along which the state's size changes from call to call; each
            value of the state has its own size along this axis. None for a state of
            fixed size.
        kind, axis, cursor, window: the fields of the same names in the bundle file; set
            when the program has been analysed (`kvc.compiler.analysis`).
    """

    name: str
    type: TensorType
    initial: str | None
    grows: int | None = None
    kind: StateKind = StateKind.PLAIN
    axis: int | None = None
    cursor: int | None = None
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """All methods of a model, with the data that they share.

    Attributes:
        cursors: the counters of token positions; set when the program has been
            analysed.
    """

    symbols: tuple[Symbol, ...]
    constants: tuple[Constant, ...]
    states: tuple[State, ...]
    methods: tuple[Method, ...]
    cursors: tuple[Cursor, ...] = ()


def values_in(arguments: tuple[Argument, ...]) -> Iterator[Value]:
    """Yield the values among arguments, also those in lists."""
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, tuple):
            yield from (item for item in argument if isinstance(item, Value))


def map_argument(argument: Argument, replace: Callable[[Value], Value]) -> Argument:
    """Return the argument with each value in it replaced by `replace(value)`."""
    if isinstance(argument, Value):
        return replace(argument)
    if isinstance(argument, tuple):
        return tuple(replace(a) if isinstance(a, Value) else a for a in argument)
    return argument


def bound_to(bindings: tuple[tuple[Value, str], ...]) -> dict[int, str]:
    """Return value id -> name, for (value, name) pairs of constants or states."""
    return {value.id: name for value, name in bindings}
