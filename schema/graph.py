"""The code of a program: values, and the instructions that compute them.

A graph belongs to a method or to a block of a method. The id of a value, like any id in
a program, is its index in the tuple that contains it.
"""

from enum import IntEnum

from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.types import Affine, Dim, TensorType


@frozen
class Ref:
    """An argument of an instruction that is a value of the graph, by the value's id."""

    value: int


Item = Ref | int | float | bool | str | DType | Affine | None
Argument = Item | tuple[Item, ...]


@frozen
class Constant:
    """Storage of a value that is named data: `Program.names[name]`."""

    name: int


@frozen
class StateSlot:
    """Storage of a value that is a state's memory: `Program.states[state]`."""

    state: int


@frozen
class Scratch:
    """Storage of a value in the method's scratch arena, of at most `nbytes` bytes."""

    offset: int
    nbytes: int


@frozen
class Alias:
    """Storage of a value in the memory of the value `base`.

    The value is a view of `base`, an update of `base`, or a result that overwrites
    `base`. A result that is neither a view nor an update may overwrite `base` only if
    `base` has the same type, and is a state, a caller's input, or an operand of a
    pointwise operator in scratch memory.
    """

    base: int


@frozen
class Caller:
    """Storage of an input in the caller's memory: the array that the caller passes."""


class CursorField(IntEnum):
    """A field of a cursor that a call reads; the member's value is its file code."""

    START = 0  # int64 [], [1] or [rows]: each row's position at the start of the call
    END = 1  # each row's position at the end of the call
    LENGTHS = 2  # int64 [rows]: the number of tokens that count, per row
    PLACES = 3  # int64 [tokens]: the position of each token, if rows share positions


@frozen
class CursorSlot:
    """Storage of a value that is a field of a cursor.

    The session fills the field before each call; instructions only read it.
    """

    cursor: int
    field: CursorField


Storage = Constant | StateSlot | Scratch | Alias | Caller | CursorSlot


@frozen
class Value:
    """A tensor of a graph: its type and its storage."""

    type: TensorType
    storage: Storage


@frozen
class Instruction:
    """One call of an operator.

    Attributes:
        op: full operator name, as in the table of `kvc.schema.ops`.
        arguments: one argument for each parameter of the operator's signature.
        results: ids of the values that the instruction defines.
        source: `package.module:line` and module path of the user's code, or "".
    """

    op: str
    arguments: tuple[Argument, ...]
    results: tuple[int, ...]
    source: str = ""


class AccessMode(IntEnum):
    """Which slots a write to a state changes; the member's value is its file code."""

    ANYWHERE = 0
    SLOTS = 1  # rows from an index on; for a state with a cursor, the cursor
    APPEND = 2  # rows after the end
    REPLACE = 3  # the whole value, with a new length

    @property
    def lengthens(self) -> bool:
        """Tell whether a write of this mode may change the value's length."""
        return self in (AccessMode.APPEND, AccessMode.REPLACE)


@frozen
class Access:
    """A write of an instruction to memory that outlives the instruction.

    Attributes:
        root: the id of the value that owns the memory: a state, or a block's input in
            the caller's memory.
        mode: which slots the write changes.
        axis: the axis of the slots, or of the changed length; None for ANYWHERE.
        size: the number of slots written, or the new length.
    """

    root: int
    mode: AccessMode
    axis: int | None = None
    size: Dim | None = None


@frozen
class Graph:
    """Code: a table of values, and the instructions that compute them.

    Attributes:
        values: every tensor of the graph; the id of a value is its index.
        inputs: ids of the values that the caller fills before the first instruction.
        outputs: ids of values that are returned after the last instruction.
        instructions: all instructions, in the order in which they run.
        scratch_nbytes: size in bytes of the scratch arena; `Scratch` offsets lie in it.
        peak_nbytes: the maximum number of scratch bytes in use at one time, a lower
            bound for any memory plan.
    """

    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    scratch_nbytes: int
    peak_nbytes: int

    def read(self) -> frozenset[int]:
        """Return the ids of the values that an instruction or the caller reads."""
        given = [a for one in self.instructions for a in one.arguments]
        items = [i for a in given for i in (a if isinstance(a, tuple) else (a,))]
        found = {item.value for item in items if isinstance(item, Ref)}
        return frozenset(found.union(self.outputs))

    def root_of(self, value: int) -> int:
        """Return the id of the value that owns the memory of `value`.

        The owner can be `value` itself.
        """
        while isinstance(storage := self.values[value].storage, Alias):
            value = storage.base
        return value

    def roots(self) -> list[int]:
        """Return, for each value, the id of the value that owns its memory.

        This is faster than a call of `root_of` for each value.
        """
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
