"""The named data of partitions for subgraphs.

In: a program and its data. Out: addresses for the library. Data that XNNPACK does not
pack is copied to fixed addresses with readable bytes after the copy; all subgraphs
share the copies. The addresses of data that XNNPACK packs come from `weights.py`. Data
is checked by its digest before it is copied.
"""

from collections import Counter
from collections.abc import Mapping

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.xnnpack.identities import Identity, identify
from kvc.runtime.delegates.xnnpack.layouts import PLAIN, arrange
from kvc.runtime.delegates.xnnpack.memory import padded_copy
from kvc.runtime.delegates.xnnpack.weights import Weights
from kvc.runtime.memory.arrays import Array
from kvc.schema.model import NamedData, Program
from kvc.schema.types import TensorType

Data = Mapping[str, FreeableBuffer]


class Copies:
    """Copies of named data that is not packed; used by several threads."""

    def __init__(self) -> None:
        # Keyed by blob and type, which names may share, and layout; with the first
        # name.
        self._copies: dict[tuple[int, TensorType, str], tuple[str, Array]] = {}

    def get(self, named: NamedData, layout: str, data: Data) -> Array:
        """Return the copy of named data in a layout, made on first use.

        See `FreeableBuffer.array` for errors.
        """
        key = (named.blob, named.type, layout)
        if key not in self._copies:
            with data[named.name] as buffer:
                made = padded_copy(arrange(buffer.private_array(), layout))
            # Without a lock: in a race two copies are made, and one is kept.
            self._copies.setdefault(key, (named.name, made))
        return self._copies[key][1]

    def nbytes(self) -> Counter[str]:
        """Return the number of bytes of the copies, by name of the data."""
        total: Counter[str] = Counter()
        for name, array in self._copies.copy().values():
            total[name] += array.nbytes
        return total

    def close(self) -> None:
        """Drop all copies; they are freed when no subgraph reads them any more."""
        self._copies.clear()


class Statics:
    """The named data of one partition, by id; see `subgraph.Statics`.

    Attributes:
        identities: the weights whose addresses have been requested.
    """

    def __init__(
        self,
        program: Program,
        data: Data,
        copies: Copies,
        weights: Weights,
    ) -> None:
        self._program = program
        self._data = data
        self._copies = copies
        self._weights = weights
        self.identities: set[Identity] = set()

    def pinned(self, name: int, layout: str = PLAIN) -> Array:
        """Return named data in a layout, as a copy at a fixed address.

        See `FreeableBuffer.array` for errors.
        """
        return self._copies.get(self._program.names[name], layout, self._data)

    def packed(
        self,
        key: tuple[int | None, ...],
        layout: str,
        shape: tuple[int, ...],
        call: str,
    ) -> int:
        """Return the address by which the library knows a weight that XNNPACK packs.

        Raises:
            OutOfMemory: the system refuses to reserve address space.
        """
        identity = identify(self._program, key, layout, shape, call)
        self.identities.add(identity)
        return self._weights.address(identity, self._data)
