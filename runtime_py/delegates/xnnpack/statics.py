"""The named data of delegates for subgraphs.

In: a program and its data. Out: for data that XNNPACK does not pack, copies at fixed
addresses with readable bytes after them, shared by all subgraphs; for data that it
packs, the addresses from `weights.py`. Data is checked by its digest before it is
copied.
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
        """Return the copy of named data; see `FreeableBuffer.array` for errors."""
        key = (named.blob, named.type, layout)
        if key not in self._copies:
            with data[named.name] as buffer:
                made = padded_copy(arrange(buffer.private_array(), layout))
            # Without a lock: in a race two copies are made, and one is kept.
            self._copies.setdefault(key, (named.name, made))
        return self._copies[key][1]

    def nbytes(self) -> Counter[str]:
        """Return the bytes of the copies, by name."""
        total: Counter[str] = Counter()
        for name, array in self._copies.copy().values():
            total[name] += array.nbytes
        return total

    def close(self) -> None:
        """Drop all copies; they are freed when no subgraph reads them any more."""
        self._copies.clear()


class Statics:
    """The named data of one delegate, by id; see `subgraph.Statics`.

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
        """Return data at a fixed address; see `FreeableBuffer.array` for errors."""
        return self._copies.get(self._program.names[name], layout, self._data)

    def packed(
        self,
        key: tuple[int | None, ...],
        layout: str,
        shape: tuple[int, ...],
        call: str,
    ) -> int:
        """Return the address that represents a weight that XNNPACK packs.

        Raises:
            OutOfMemory: the system refuses to reserve address space.
        """
        identity = identify(self._program, key, layout, shape, call)
        self.identities.add(identity)
        return self._weights.address(identity, self._data)
