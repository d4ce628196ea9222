"""The code of a program: values, and the instructions between them.

A graph is a method's, or that of a block in it. Ids are positions in the tuple that
holds the thing.
"""

from enum import IntEnum

from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.types import Affine, TensorType


@frozen
class Ref:
    """An argument that is a value of the graph, by its id."""

    value: int


Item = Ref | int | float | bool | str | DType | Affine | None
Argument = Item | tuple[Item, ...]


@frozen
class Constant:
    """The value is named data: `Program.names[name]`."""

    name: int


@frozen
class StateSlot:
    """The value is a state's memory: `Program.states[state]`."""

    state: int


@frozen
class Scratch:
    """The value lies in the method's scratch arena, for `nbytes` at the most."""

    offset: int
    nbytes: int


@frozen
class Alias:
    """The value shares the memory of `base`: it is a view of it, or written over it.

    A result that is no view and no update of `base` may be written over it only where
    `base` is a state or a caller's input of the same type.
    """

    base: int


@frozen
class Caller:
    """The value is an input that lies in the caller's own array."""


class CursorField(IntEnum):
    """What a value says of where a call is; the number is the one in the file."""

    START = 0  # int64 [], [1] or [rows]: the position of each row as the call begins
    END = 1  # the same as the call ends
    LENGTHS = 2  # int64 [rows]: how many tokens of each row count
    PLACES = 3  # int64 [tokens]: the position of each token, where all rows have one


@frozen
class CursorSlot:
    """The value is a field of a cursor, which the session fills in before each call.

    It is only read.
    """

    cursor: int
    field: CursorField


Storage = Constant | StateSlot | Scratch | Alias | Caller | CursorSlot


@frozen
class Value:
    """A tensor of a graph: its type, and where it lives."""

    type: TensorType
    storage: Storage


@frozen
class Instruction:
    """One call of an op.

    Attributes:
        op: full name, as in the table of `kvc.schema.ops`.
        arguments: one for each parameter of the op's signature, none left out.
        results: ids of the values it defines.
        source: `package.module:line` and module path of the user's code, or "".
    """

    op: str
    arguments: tuple[Argument, ...]
    results: tuple[int, ...]
    source: str = ""


@frozen
class Graph:
    """Instructions in running order over a table of values.

    Attributes:
        values: every tensor; ids are positions.
        inputs: ids of values the caller fills before the first instruction.
        outputs: ids of values that are handed back after the last one.
        instructions: in running order.
        scratch_nbytes: size of the scratch arena that `Scratch` offsets lie in.
        peak_nbytes: most scratch bytes live at one time, a lower bound of any plan.
    """

    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    scratch_nbytes: int
    peak_nbytes: int

    def root_of(self, value: int) -> int:
        """Return the value in whose memory a value lies; it may be itself."""
        while isinstance(storage := self.values[value].storage, Alias):
            value = storage.base
        return value

    def roots(self) -> list[int]:
        """Return the root of each value: for many, in less time than one by one."""
        found: list[int] = []
        for value, one in enumerate(self.values):
            storage = one.storage
            if not isinstance(storage, Alias):
                found.append(value)
            elif storage.base < value:
                found.append(found[storage.base])
            else:
                found.append(self.root_of(storage.base))
        return found
