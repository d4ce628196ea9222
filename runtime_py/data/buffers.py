"""Handles on data: `FreeableBuffer`, `NamedBuffers`, and `BundledFiles`.

In: the blobs of a program. Out: arrays and bytes by name.
"""

import math
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from kvc.runtime.data.held import HeldBlobs
from kvc.runtime.memory.arenas import PAGE_NBYTES, Arena, align_up
from kvc.runtime.memory.arrays import Array
from kvc.schema.errors import BufferFreed, UnknownName
from kvc.schema.model import NamedData, Program
from kvc.schema.types import TensorType
from kvc.schema.uses import FILE, FILES, SLOT

_HUGE: Final = 2 << 20  # bytes of a huge page

# Mappings from names


Thing = TypeVar("Thing")


class Named(Mapping[str, Thing]):
    """A mapping from names of a program; an unknown name raises `UnknownName`."""

    def __init__(self, kind: str, names: Iterable[tuple[str, int]]) -> None:
        """Store the id of each name; `kind` says in messages what the names are."""
        self._kind, self._ids = kind, dict(names)

    @abstractmethod
    def _of(self, number: int) -> Thing:
        """Return a new item for the id of a name."""

    def __getitem__(self, name: str) -> Thing:
        if name not in self._ids:
            raise UnknownName(kind=self._kind, name=name, known=tuple(self._ids))
        return self._of(self._ids[name])

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


# Handles on data


class FreeableBuffer:
    """A handle on named data; safe to use from many threads.

    Freeing one handle does not affect other handles. Arrays from a handle stay valid
    after `free`: an array keeps its memory, or the map of its file, alive.

    Attributes:
        nbytes: the size of the data in bytes.
    """

    _freed = True  # stands for an object whose constructor failed

    def __init__(
        self, named: NamedData, nbytes: int, blobs: HeldBlobs, for_calls: bool
    ) -> None:
        self._named = named
        self._blobs = blobs
        self._for_calls = for_calls
        self._lock = threading.RLock()
        self._freed = False
        self.nbytes = nbytes
        blobs.acquire(named.blob)

    @property
    def name(self) -> str:
        """Return the data's name."""
        return self._named.name

    @property
    def freed(self) -> bool:
        """Tell whether `free` has been called."""
        return self._freed

    def array(self) -> Array:
        """Return a read-only array of the declared dtype and shape, without a copy.

        Raises:
            BufferFreed: after `free`.
            FileChanged, FormatError: the file has changed, or its bytes are damaged.
            FileProblem, OutOfMemory: the system cannot read the bytes, or has no
                memory.
            Closed, Forked: the program is closed, or was opened by another process.
        """
        array = self.private_array()
        array.flags.writeable = False
        return array

    def private_array(self) -> Array:
        """Return the array of `array`, but flagged as writable for numpy and torch.

        The array is for kernels: torch has no read-only tensors. It must not be
        written.

        Raises:
            KvcError: as `array`.
        """
        with self._lock:
            if self._freed:
                raise BufferFreed(name=self.name)
            place = self._blobs.touch(self._named.blob, self._for_calls)
        declared = self._named.type
        return place.array(declared.dtype, declared.shape({}))

    def read_into(self, target: Array) -> None:
        """Read the bytes from the file into `target`, and verify them there.

        Args:
            target: uint8 [nbytes], contiguous.

        Raises:
            KvcError: as `array`; the content of `target` is then undefined.
        """
        assert target.nbytes == self.nbytes, "the target has another size"
        with self._lock:
            if self._freed:
                raise BufferFreed(name=self.name)
            view = memoryview(target)  # type: ignore[arg-type]  # unknown to numpy
            self._blobs.read_into(self._named.blob, view, self._for_calls)

    def free(self) -> None:
        """Release the handle; a second call does nothing."""
        with self._lock:
            if self._freed:
                return
            self._freed = True
        self._blobs.release(self._named.blob)

    def __enter__(self) -> "FreeableBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __del__(self) -> None:
        if not self._freed:
            self._blobs.drop(self._named.blob)

    def __repr__(self) -> str:
        state = "freed" if self._freed else str(self._named.type)
        return f"<FreeableBuffer {self.name!r}: {state}>"


class SlotBuffer(FreeableBuffer):
    """A handle on a slot: data that the bundle does not have, zeros at first."""

    def __init__(
        self, named: NamedData, content: Array, blobs: HeldBlobs, for_calls: bool
    ) -> None:
        super().__init__(named, content.nbytes, blobs, for_calls)
        self._content = content

    def private_array(self) -> Array:
        """Return the array of the slot, which adapters fill."""
        with self._lock:
            if self._freed:
                raise BufferFreed(name=self.name)
            return self._content.view()

    def read_into(self, target: Array) -> None:
        """Copy the present bytes of the slot into `target`."""
        target[...] = self.private_array().reshape(-1).view(np.uint8)


class Slots:
    """The memory of a program's slots: zeros, which take no memory until written.

    All slots have the same number of indices along the first axis, and what they have
    at one index lies together. The memory stays at the same address for the life of the
    program.
    """

    def __init__(self, program: Program) -> None:
        slots = [i for i, named in enumerate(program.names) if named.format == SLOT]
        self._lock = threading.Lock()
        self._arena: Arena | None = None
        self._types = {number: program.names[number].type for number in slots}
        counts = [kind.shape({})[0] for kind in self._types.values()]
        self._count = max(counts, default=0)
        sizes = map(_nbytes_of_index, self._types.values())
        *begins, nbytes = accumulate(map(align_up, sizes), initial=0)
        self._begins = dict(zip(slots, begins, strict=True))
        self._stride = align_up(nbytes, _HUGE if nbytes > _HUGE // 2 else PAGE_NBYTES)

    def _memory(self) -> Arena:
        with self._lock:
            if self._arena is None:
                self._arena = Arena(self._count * self._stride, "slots of adapters")
                self._arena.use_huge_pages()
            return self._arena

    def array(self, number: int) -> Array:
        """Return the array of a slot, by the id of its named data.

        Raises:
            OutOfMemory: the system provides no address space.
        """
        kind, begin = self._types[number], self._begins[number]
        *shape, dtype = *kind.shape({}), kind.dtype
        one = self._memory().array(begin, dtype, tuple(shape[1:]))
        strides = (self._stride, *one.strides)
        return as_strided(one, tuple(shape), strides)

    def clear(self, index: int) -> None:
        """Set what all slots have at an index to zeros, and free its memory pages."""
        self._memory().clear(index * self._stride, self._stride)


def _nbytes_of_index(kind: TensorType) -> int:
    """Return how many bytes a slot has at one index of the first axis."""
    return math.prod(kind.shape({})[1:]) * kind.dtype.itemsize


class NamedBuffers(Named[FreeableBuffer]):
    """`program.data`: every name of the bundle; each lookup returns a new handle.

    Handles of users stay valid until the program is closed; handles made with
    `for_calls`, until the last running call has ended.
    """

    def __init__(
        self, program: Program, blobs: HeldBlobs, slots: Slots, for_calls: bool = False
    ) -> None:
        self._program = program
        self._blobs, self._slots = blobs, slots
        self._for_calls = for_calls
        super().__init__("data", ((n.name, i) for i, n in enumerate(program.names)))

    def handle(self, number: int) -> FreeableBuffer:
        """Return a new handle on the data with an id.

        Raises:
            Forked: the program was opened by another process.
        """
        named = self._program.names[number]
        if named.format == SLOT:
            content = self._slots.array(number)
            return SlotBuffer(named, content, self._blobs, self._for_calls)
        nbytes = self._program.blobs[named.blob].nbytes
        return FreeableBuffer(named, nbytes, self._blobs, self._for_calls)

    _of = handle


class BundledFiles(Named[bytes]):
    """`program.files`: name to bytes, read and verified at each lookup.

    A lookup raises `FileChanged`, `FormatError` or `FileProblem` if the bytes cannot be
    read or verified; `Closed` or `Forked` if the program is closed or was opened by
    another process.
    """

    def __init__(self, program: Program, buffers: NamedBuffers) -> None:
        self._buffers = buffers
        names = enumerate(program.names)
        files = ((n.name.removeprefix(FILES), i) for i, n in names if n.format == FILE)
        super().__init__("bundled file", files)

    def _of(self, number: int) -> bytes:
        with self._buffers.handle(number) as buffer:
            content = np.empty(buffer.nbytes, np.uint8)
            buffer.read_into(content)
        return content.tobytes()
