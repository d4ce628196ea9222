"""`Regions`: reserved address space that stands for the memory of a bound list.

In: a program, a method, the sizes of symbols. Out: arrays over memory that nobody
touches; and for any array that binding makes of them, its region and offset. Arrays
that binding makes itself are either values between, which get a place in scratch
memory, or lengths that are known at binding, whose elements are all equal.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from kvc.runtime.memory.arenas import Arena, align_up
from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.states.layout import GroupLayout
from kvc.runtime.states.owner import Group
from kvc.schema.bounds import RegionKind
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.model import Program
from kvc.schema.uses import SLOT

# The end of an array's memory, its region, and its offset there
_Place = tuple[int, RegionKind, int, int]


@frozen
class Operand:
    """An array of a region.

    Attributes:
        region: what the memory is.
        place: which one; for `FILLED` the value of all elements; for `SCRATCH` 0, or n
            for the nth array that binding made.
        offset: where the array begins in the region, in bytes.
        dtype: the element type.
        dims: the size of each axis.
        strides: the distance along each axis, in elements.
    """

    region: RegionKind
    place: int
    offset: int
    dtype: DType
    dims: tuple[int, ...]
    strides: tuple[int, ...]


class Regions:
    """The memory that a method is bound to; see the module.

    Attributes:
        scratch, workspace: memory for values of the method and of its partitions.
        states: an array for each state.
        planned_nbytes: bytes of scratch memory that the compiler has planned.
        made_nbytes: bytes of each array that binding made.
    """

    def __init__(self, program: Program, method: int, sizes: Mapping[str, int]) -> None:
        own = program.methods[method]
        blocks = [block.graph.scratch_nbytes for block in own.blocks]
        self.scratch = Arena(own.graph.scratch_nbytes)
        self.workspace = Arena(max(blocks, default=0))
        self._program = program
        self._constants: dict[int, Array] = {}
        self._places: list[_Place] = []
        self._starts: list[int] = []
        self._kept: list[object] = []
        self._made: dict[int, tuple[Array, Operand]] = {}  # by id
        between = align_up(self.scratch.nbytes)
        self._add(self.scratch, RegionKind.SCRATCH, 0, 0)
        self._add(self.workspace, RegionKind.SCRATCH, 0, between)
        self.planned_nbytes = between + align_up(self.workspace.nbytes)
        self.made_nbytes: list[int] = []
        self.states = [
            self._state(number, sizes) for number in range(len(program.states))
        ]

    def constant(self, name: int) -> Array:
        """Return an array that stands for named data."""
        if name not in self._constants:
            named = self._program.names[name]
            assert named.format != SLOT, "methods of adapters have no lists"
            arena = Arena(named.type.nbytes({}))
            self._add(arena, RegionKind.CONSTANT, name, 0)
            shape = named.type.shape({})
            self._constants[name] = arena.array(0, named.type.dtype, shape)
        return self._constants[name]

    def _state(self, number: int, sizes: Mapping[str, int]) -> Array:
        declared = self._program.states[number]
        group = Group((number,), (declared,), frozenset(), False)
        layout = GroupLayout(group, sizes, 0)
        arena = Arena(layout.nbytes)
        self._add(arena, RegionKind.STATE, number, 0)
        state: Array = layout.all(arena)[0]
        return state

    def _add(self, arena: Arena, kind: RegionKind, place: int, offset: int) -> None:
        self._kept.append(arena)
        self._put(arena.address, len(arena.bytes), kind, place, offset)

    def _put(
        self, start: int, nbytes: int, kind: RegionKind, place: int, offset: int
    ) -> None:
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._places.insert(at, (start + nbytes, kind, place, offset))

    def add_cursors(self, arrays: Sequence[Array]) -> None:
        """Take over the arrays of cursor fields, in their order."""
        for place, array in enumerate(arrays):
            nbytes = max(array.nbytes, 1)
            self._put(address_of(array), nbytes, RegionKind.CURSOR, place, 0)
        self._kept += arrays

    def operand_or_none(self, array: Array | None) -> Operand | None:
        """Return where an array lies; None for none."""
        return None if array is None else self.operand(array)

    def operand(self, array: Array) -> Operand:
        """Return where an array lies."""
        address = address_of(array)
        at = bisect_right(self._starts, address) - 1
        if at >= 0:
            end, kind, place, offset = self._places[at]
            if address < end:
                inside = address - self._starts[at] + offset
                return _described(array, kind, place, inside)
        return self._own(array)

    def _own(self, array: Array) -> Operand:
        """Return the place of an array that binding made itself."""
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        known = self._made.get(id(root))
        if known is None:
            known = self._made[id(root)] = root, self._placed(root)
        place = known[1]
        if place.region is RegionKind.FILLED:
            return _described(array, RegionKind.FILLED, place.place, 0)
        inside = address_of(array) - address_of(root)
        return _described(array, RegionKind.SCRATCH, place.place, inside)

    def _placed(self, root: Array) -> Operand:
        """Return a new place in scratch memory, or what the array is filled with."""
        if not root.flags.writeable:
            assert root.dtype == np.int64, "binding fills lengths alone"
            value = int(root.flat[0]) if root.size else 0
            assert np.all(root == value), "they are equal for all rows"
            return _described(root, RegionKind.FILLED, value, 0)
        self.made_nbytes.append(root.nbytes)
        return _described(root, RegionKind.SCRATCH, len(self.made_nbytes), 0)


def _described(array: Array, kind: RegionKind, place: int, offset: int) -> Operand:
    dtype = DType.from_numpy(array.dtype)
    assert dtype is not None, "binding makes no other arrays"
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return Operand(kind, place, offset, dtype, array.shape, strides)
