"""`SharedArrays`: arrays in memory that another process maps by its descriptor.

In: names, dtypes and shapes. Out: arrays of zeros, one after the other in one file that
no folder has.
"""

import mmap
import os
from collections.abc import Mapping

import numpy as np

from kvc.runtime.memory.arenas import align_up
from kvc.runtime.memory.arrays import Array

Kind = tuple[str, tuple[int, ...]]  # dtype, shape


class SharedArrays:
    """Arrays of one call.

    Attributes:
        arrays: by name.
        places: where each lies, in bytes, by name.
        nbytes: of all.
        descriptor: of their memory; another one in a child of a fork.
    """

    def __init__(self, name: str, kinds: Mapping[str, Kind]) -> None:
        """Lay arrays out, and make their memory, which has a name for debuggers."""
        self._name, self._kinds = name, kinds
        self.places: dict[str, int] = {}
        end = 0
        for key, (dtype, shape) in kinds.items():
            self.places[key] = end
            end = align_up(end + np.dtype(dtype).itemsize * int(np.prod(shape)))
        self.nbytes = end
        self._allocate()

    def _allocate(self) -> None:
        self._owner = os.getpid()
        self.descriptor = os.memfd_create(self._name)
        os.ftruncate(self.descriptor, self.nbytes)
        memory = mmap.mmap(self.descriptor, self.nbytes)
        self.arrays: Mapping[str, Array] = {
            key: np.ndarray(shape, dtype, memory, self.places[key])
            for key, (dtype, shape) in self._kinds.items()
        }

    def renew(self) -> bool:
        """Make memory of its own in a child of a fork; tell whether this is one.

        That of the parent is the same for both.
        """
        if self._owner == os.getpid():
            return False
        os.close(self.descriptor)
        self._allocate()
        return True

    def close(self) -> None:
        """Give the memory back; no array over it is used afterwards."""
        os.close(self.descriptor)
