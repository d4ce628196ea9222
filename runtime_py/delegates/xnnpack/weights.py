"""Packed weights: a weight with its scales and bias in XNNPACK's form, stored once.

XNNPACK looks packed bytes up in a cache by a seed, a fingerprint of the packing and two
addresses, and reads the weight only if the cache has no entry. So every weight gets an
address that depends on the digests of everything that is packed together, and that is
never reused while the cache exists. Equal bytes with other scales have another address.
The weight's bytes are written to the address when XNNPACK is about to pack them, or
earlier by a second thread while XNNPACK packs other weights. They are removed after
packing. A second method, context or program finds the packed weight, and reads nothing
(`packed_bytes.py`).

In: names of data. Out: addresses of weights, and the cache for
`xnn_create_runtime_v4`.
"""

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.xnnpack.functions import CacheKey
from kvc.runtime.delegates.xnnpack.identities import Identity, entry_key
from kvc.runtime.delegates.xnnpack.layouts import AS_THEY_ARE, arrange
from kvc.runtime.delegates.xnnpack.library import Library
from kvc.runtime.delegates.xnnpack.memory import (
    HUGE_PAGE_NBYTES,
    TAIL_NBYTES,
    Heap,
    Region,
    bits,
)
from kvc.runtime.delegates.xnnpack.packed_bytes import (
    PackedBytes,
    PackedKey,
    may_be_offered,
    offer,
    offered,
)
from kvc.runtime.delegates.xnnpack.provider import NOT_FOUND, Provider, ahead_of
from kvc.schema.errors import DataFileMissing, NativeCallFailed, OutOfMemory
from kvc.schema.frozen import frozen

_FAILED: Final = 0  # as a returned address
_FEWEST_AHEAD: Final = 2  # weights from which a second thread is worth it

Data = Mapping[str, FreeableBuffer]
Stored = Mapping[str, str]


@frozen
class Packed:
    """A weight in XNNPACK's own form.

    Attributes:
        key: an identifier that is valid in every process.
        name: name of the weight.
        seed, fingerprint: the numbers by which the library identifies the packed
            weight.
        address: address of the packed bytes.
        nbytes: size of the packed bytes.
        asked_for: whether the library looks for the packed weight before it packs the
            weight again.
    """

    key: str
    name: str
    seed: int
    fingerprint: int
    address: int
    nbytes: int
    asked_for: bool


@dataclass(slots=True, eq=False)
class _Token:
    """The addresses by which the library knows a weight, and its bytes' source."""

    identity: Identity
    region: Region
    data: Data
    _filled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fill(self) -> None:
        """Write the weight's checked bytes to its address, unless they are there.

        See `FreeableBuffer.array` for errors.
        """
        with self._lock:
            if not self._filled:
                self._read()
                self._filled = True

    def empty(self) -> None:
        """Free the pages of the weight's bytes."""
        with self._lock:
            self._filled = False
            self.region.discard()

    def _read(self) -> None:
        layout = self.identity.layout
        with self.data[self.identity.weight] as buffer:
            target = self.region.view(0, buffer.nbytes)
            if layout in AS_THEY_ARE:
                buffer.read_into(target)  # reads once, without mapped pages
                return
            arranged = arrange(buffer.private_array(), layout)
            np.copyto(bits(target.view(arranged.dtype)), bits(arranged.reshape(-1)))


class Weights:
    """The weights cache of a backend; used by several threads.

    Attributes:
        library: the library that packs.
    """

    def __init__(self, library: Library, stored: Stored | None = None) -> None:
        """Make an empty cache.

        Args:
            library: the library that packs.
            stored: names of the data with weights that were packed earlier, by
                `Packed.key`. This data is read and checked, and its weights are not
                packed again.
        """
        self.library = library
        self._stored = stored or {}
        # Re-entrant: the library calls back while a runtime is created.
        self._lock = threading.RLock()
        self._tokens: dict[Identity, _Token] = {}
        self._places: dict[int, _Token] = {}
        self._packed: dict[PackedKey, Packed] = {}
        self._shared: dict[PackedKey, PackedBytes] = {}
        self._heap = Heap()
        # For the runtime that is being created: tokens whose bytes exist, and weights
        # that the library has not looked up yet.
        self._filled: list[_Token] = []
        self._expected: dict[_Token, None] = {}  # in order
        self._asked: Callable[[], None] = _nothing
        self._failure: BaseException | None = None
        self._provider: Provider | None = Provider(
            self.library, self._look_up, self._reserve, self._insert
        )

    def address(self, identity: Identity, data: Data) -> int:
        """Return the address by which the library knows a weight, within `packing`.

        Args:
            identity: identity of the weight.
            data: the source of the weight's bytes, read only if the bytes are needed.

        Raises:
            OutOfMemory: the system refuses to reserve address space.
            KvcError: the data must be read at once, and `FreeableBuffer.array` fails.
        """
        with self._lock:
            token = self._tokens.get(identity)
            if token is None:
                nbytes = identity.nbytes + TAIL_NBYTES
                huge = nbytes >= HUGE_PAGE_NBYTES
                region = Region(nbytes, "a weight to pack", huge)
                token = _Token(identity, region, data)
                self._tokens[identity] = token
                self._places[token.region.address] = token
            if identity.is_asked_for:
                self._expected[token] = None
            elif token not in self._filled:
                self._fill(token)
            return token.region.address

    @contextmanager
    def packing(self) -> Iterator[int]:
        """Yield the address of the cache, for the creation of one runtime.

        Other threads that enter `packing` wait until this thread has left it.

        Raises:
            KvcError: bytes to be packed cannot be read; a runtime that was created
                nevertheless must be deleted.
        """
        with self._lock:
            assert self._provider is not None, "a closed cache packs nothing"
            self._expected.clear()
            try:
                yield self._provider.address
                for token in self._expected:
                    raise _failure(f"{token.identity.weight!r} was not asked for")
            finally:  # this error says more than the library's own
                failure, self._failure = self._failure, None
                while self._filled:
                    self._filled.pop().empty()
                if failure is not None:
                    raise failure

    @contextmanager
    def reading_ahead(self) -> Iterator[None]:
        """Read weights in a second thread while the library packs earlier weights.

        Must be used within `packing`.
        """
        packed = {digest for *_, digest in self._packed}
        waiting = (t for t in self._expected if t.identity.digest not in packed)
        new = [t for t in waiting if not may_be_offered(t.identity.digest)]
        if self._stored or len(new) < _FEWEST_AHEAD:
            yield
            return
        try:
            with ahead_of(new, self._fill_ahead) as self._asked:
                yield
        finally:
            self._asked = _nothing

    def entries(self) -> tuple[Packed, ...]:
        """Return all packed weights, in the order of packing."""
        return tuple(self._packed.copy().values())

    def bytes_of(self, entry: Packed) -> bytes:
        """Return a copy of a packed weight's bytes."""
        with self._lock:
            assert self._provider is not None, "a closed cache has no bytes"
            return ctypes.string_at(entry.address, entry.nbytes)

    def packed(self) -> Counter[str]:
        """Return the number of packed bytes, by the name of the weight."""
        total: Counter[str] = Counter()
        for entry in self.entries():
            total[entry.name] += entry.nbytes
        return total

    def close(self) -> None:
        """Free all memory, which no runtime uses any more."""
        with self._lock:
            if self._provider is not None:
                self._provider.close()
            self._provider = None
            self._packed.clear()
            self._shared.clear()
            self._places.clear()
            for token in self._tokens.values():
                token.region.close()
            self._tokens.clear()
            self._heap.close()

    def _look_up(self, asked: CacheKey) -> int:
        """Return a packed weight's offset; `NOT_FOUND` if the library must pack it.

        Before `NOT_FOUND` is returned, the weight's bytes are written to the weight's
        address. No exception must reach the library: an error is stored, and makes the
        next call of `_reserve` fail.
        """
        try:
            token = self._places.get(asked.kernel or 0)
            if token is None:
                raise _failure("it packs data that has no address of its own")
            if token in self._expected:
                del self._expected[token]
                self._asked()
            entry = self._find(token, asked) or self._copy_stored(token, asked)
            if entry is not None:
                return self._offset(entry.address)
            self._fill(token)
        except BaseException as error:
            self._failure = self._failure or error
        return NOT_FOUND

    def _reserve(self, nbytes: int) -> int:
        """Return the address of memory for a weight that the library will pack."""
        try:
            return _FAILED if self._failure else self._heap.room(nbytes)
        except BaseException as error:
            self._failure = self._failure or error
            return _FAILED

    def _insert(self, asked: CacheKey, address: int, nbytes: int) -> int:
        """Add a packed weight to the cache, and free the bytes of the unpacked weight.

        Returns the packed weight's offset. If the cache has an equal packed weight
        already, the offset is that of the earlier one, and the memory of the new one is
        free again.
        """
        try:
            token = self._places[asked.kernel]
            entry = self._find(token, asked)
            if entry is not None:
                return self._offset(entry.address)
            self._heap.take(address, nbytes)
            self._keep(token, asked, address, nbytes)
            key, region = self._key(token, asked), self._heap.region
            self._shared[key] = PackedBytes(region, address, nbytes)
            offer(key, self._shared[key])
            self._filled.remove(token)
            token.empty()
        except BaseException as error:
            self._failure = self._failure or error
            return NOT_FOUND
        return self._offset(address)

    def _offset(self, address: int) -> int:
        assert self._provider is not None, "the library asks while it packs"
        return self._provider.offset(address)

    def _fill(self, token: _Token) -> None:
        if token not in self._filled:
            self._filled.append(token)
        token.fill()

    def _fill_ahead(self, token: _Token) -> None:
        if token in self._expected:
            self._fill(token)

    def _key(self, token: _Token, asked: CacheKey) -> PackedKey:
        return (asked.seed, asked.fingerprint, token.identity.digest)

    def _keep(
        self, token: _Token, asked: CacheKey, address: int, nbytes: int
    ) -> Packed:
        seed, fingerprint, _ = key = self._key(token, asked)
        name = entry_key(self.library, token.identity, seed, fingerprint)
        weight = token.identity.weight
        asked_for = token.identity.is_asked_for
        entry = Packed(name, weight, seed, fingerprint, address, nbytes, asked_for)
        self._packed[key] = entry
        return entry

    def _find(self, token: _Token, asked: CacheKey) -> Packed | None:
        """Return a weight that this program or another one has packed, or None."""
        key = self._key(token, asked)
        entry, others = self._packed.get(key), offered(key)
        if entry is not None or others is None:
            return entry
        self._shared[key] = others
        return self._keep(token, asked, others.address, others.nbytes)

    def _copy_stored(self, token: _Token, asked: CacheKey) -> Packed | None:
        """Read a packed weight from stored data; return None if no data has it.

        The length that the library needs is unknown. Therefore as many bytes as the
        largest possible packed weight takes can be read at the address; if the stored
        packed weight is too short, results are wrong.

        Raises:
            NativeCallFailed: the stored packed weight is longer than any can be.
            KvcError: `FreeableBuffer.array` cannot read the stored packed weight.
        """
        seed, fingerprint, _ = self._key(token, asked)
        key = entry_key(self.library, token.identity, seed, fingerprint)
        if key not in self._stored:
            return None
        bound = token.identity.packed_bound
        with token.data[self._stored[key]] as buffer:
            nbytes = buffer.nbytes
            if nbytes > bound:
                what = token.identity.weight
                raise _failure(f"{nbytes} bytes are no packing of {what!r}")
            try:
                address = self._heap.room(nbytes, readable=bound)
                buffer.read_into(self._heap.view(address, nbytes))
            except (DataFileMissing, OutOfMemory):  # then the weight is packed here
                return None
        self._heap.take(address, nbytes)
        return self._keep(token, asked, address, nbytes)


def _nothing() -> None:
    """Do nothing when the library looks for a weight; used if none are read ahead."""


def _failure(reason: str) -> NativeCallFailed:
    return NativeCallFailed(library="XNNPACK", what="weights cache", reason=reason)
