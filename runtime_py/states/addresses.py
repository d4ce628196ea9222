"""`StateAddresses`: where the states of one session lie in host memory.

In: the arrays of states. Out: their addresses, for all rows or a range of rows; and
arrays of the same shapes that stand in for those of any session while a method is
bound. Nothing reads or writes what stands in.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from kvc.runtime.memory.arenas import Arena, align_up
from kvc.runtime.memory.arrays import Array, address_of
from kvc.runtime.states.owner import Buffer
from kvc.runtime.states.row_range import RowRange

Addresses = npt.NDArray[np.uint64]
Place = tuple[object, Addresses]


class StateAddresses:
    """The addresses of a session's states.

    Attributes:
        sizes: the sizes that the session fixed; sessions of equal sizes have states of
            equal shapes and strides.
    """

    def __init__(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        self.sizes = tuple(sorted(sizes.items()))
        self._shapes = [(one.shape, one.strides, one.dtype) for one in arrays]
        self._whole = np.array([address_of(one) for one in arrays], np.uint64)
        self._places: dict[int, Place] = {}

    def at(self, rows: RowRange | None) -> Place:
        """Return the address of each state, uint64 [states], of some rows or all.

        It comes with an object that is the same at each call for equal addresses.
        """
        first = 0 if rows is None else rows.first
        found = self._places.get(first)
        if found is None:
            addresses = self._whole
            if rows is not None:
                steps = [
                    strides[0] * first if own else 0
                    for own, (_, strides, _) in zip(
                        rows.states, self._shapes, strict=True
                    )
                ]
                addresses = addresses + np.array(steps, np.uint64)
            found = self._places[first] = object(), addresses
        return found

    def stand_in(self) -> list[Array]:
        """Return arrays of the shapes and strides of the states.

        Raises:
            OutOfMemory: the system provides no address space.
        """
        sizes = [
            _extent(shape, strides, dtype) for shape, strides, dtype in self._shapes
        ]
        arena = Arena(sum(map(align_up, sizes)), "the addresses of states")
        made, offset = list[Array](), 0
        for size, (shape, strides, dtype) in zip(sizes, self._shapes, strict=True):
            made.append(np.ndarray(shape, dtype, arena.owner, offset, strides))
            offset += align_up(size)
        return made


def addresses_of(
    buffers: Sequence[Buffer], sizes: Mapping[str, int]
) -> StateAddresses | None:
    """Return the addresses of states; None if the host does not own all of them."""
    arrays = [held for held in buffers if isinstance(held, np.ndarray)]
    return None if len(arrays) < len(buffers) else StateAddresses(arrays, sizes)


def _extent(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: "np.dtype[np.generic]"
) -> int:
    """Return how many bytes an array of non-negative strides spans."""
    if not math.prod(shape):
        return 0
    steps = ((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return sum(steps) + dtype.itemsize
