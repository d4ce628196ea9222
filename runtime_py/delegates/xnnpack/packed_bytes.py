"""Packed weights that programs of this process share: equal ones are packed once.

In: what a weight is packed from, as a digest, and how. Out: the packed bytes of another
program. They stay in memory as long as a `Weights` has them. Only bytes that were
packed in this process are offered to others: a bundle's stored packings are its own
claim.
"""

import weakref
from typing import Final
from weakref import WeakValueDictionary

from kvc.runtime.delegates.xnnpack.memory import Region

PackedKey = tuple[int, int, bytes]  # seed, fingerprint, digest of the identity


class PackedBytes:
    """Packed bytes; their pages are freed with the last reference.

    Attributes:
        address: the address of the bytes.
        nbytes: their size.
    """

    def __init__(self, region: Region, address: int, nbytes: int) -> None:
        """Keep a region, as long as the bytes in it are in use."""
        self.address, self.nbytes = address, nbytes
        offset = address - region.address
        weakref.finalize(self, region.discard_within, offset, nbytes).atexit = False


# Each use is one step of a dictionary: no lock, which a fork could find taken.
_PACKED: Final[WeakValueDictionary[PackedKey, PackedBytes]] = WeakValueDictionary()
_DIGESTS: Final[WeakValueDictionary[bytes, PackedBytes]] = WeakValueDictionary()


def offer(key: PackedKey, packed: PackedBytes) -> None:
    """Let other programs use a packed weight."""
    _PACKED.setdefault(key, packed)
    _DIGESTS.setdefault(key[2], packed)


def offered(key: PackedKey) -> PackedBytes | None:
    """Return a packed weight of this process, None if there is none."""
    return _PACKED.get(key)


def may_be_offered(digest: bytes) -> bool:
    """Tell whether a weight of this identity has been packed, in whatever way."""
    return digest in _DIGESTS
