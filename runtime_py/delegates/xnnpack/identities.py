"""The identity of a packed weight: the digests of all that is packed into it, and how.

In: a program and names of its data. Out: identities that are equal if the packed bytes
are, in every process.
"""

import hashlib
from dataclasses import field

from kvc.runtime.delegates.xnnpack.layouts import (
    BATCHES,
    BATCHES_TRANSPOSED,
    is_transposed,
)
from kvc.runtime.delegates.xnnpack.library import Library
from kvc.schema.frozen import frozen
from kvc.schema.model import Program


@frozen
class Identity:
    """A weight with its scales, its bias and its arrangement; compared by digest.

    Attributes:
        digest: of contents, dtypes, shapes, layout and the call that packs.
        weight: its name.
        layout: how its bytes are arranged for the library.
        nbytes: how many they are.
        packed_bound: a size in bytes that no packing of it exceeds.
    """

    digest: bytes
    weight: str = field(compare=False)
    layout: str = field(compare=False)
    nbytes: int = field(compare=False)
    packed_bound: int = field(compare=False)

    @property
    def is_asked_for(self) -> bool:
        """Tell whether XNNPACK asks the cache for it before it packs it.

        Constants of batches of matrices it packs into memory of each runtime instead,
        and what a transposed convolution has packed it shows the cache afterwards.
        """
        batches = self.layout in (BATCHES, BATCHES_TRANSPOSED)
        return not batches and not is_transposed(self.layout)


def identify(
    program: Program,
    names: tuple[int | None, ...],
    layout: str,
    shape: tuple[int, ...],
    call: str,
) -> Identity:
    """Return the identity of a weight.

    The library's own seed is the same for packings that differ in their shape, or in
    the groups of a convolution. So all that an operator is made with tells them apart.

    Args:
        program: that has the names.
        names: ids of the weight, its scales and its bias; None for what there is not.
        layout: how its bytes are arranged.
        shape: in which the library is given it.
        call: the function that it is for, and the numbers that this is given.
    """
    sizes = ",".join(map(str, shape))
    parts = hashlib.sha256(f"{layout} [{sizes}] {call};".encode())
    for name in names:
        parts.update(b"-" if name is None else _describe(program, name))
    weight = names[0]
    assert weight is not None, "there is no packing of nothing"
    named = program.names[weight]
    nbytes = program.blobs[named.blob].nbytes
    bound = _packed_bound(shape, nbytes)
    return Identity(parts.digest(), named.name, layout, nbytes, bound)


def _packed_bound(shape: tuple[int, ...], nbytes: int) -> int:
    """Return a size that no packing of a weight exceeds.

    Kernels pad both sides of a matrix to at most 256 elements of at most 8 bytes, and
    add less than 64 bytes a row; at the least, nothing is padded more than 256 times.
    """
    if len(shape) == 2:
        rows, columns = (size + 256 for size in shape)
        return 8 * rows * columns + 64 * (rows + columns)
    return 16 * nbytes + (nbytes + 256) * 256


def _describe(program: Program, name: int) -> bytes:
    named = program.names[name]
    # The type, too: the same bytes as [2, 3] and as [3, 2] have the same seed.
    return program.blobs[named.blob].digest + f"+{named.type}".encode()


def entry_key(library: Library, identity: Identity, seed: int, fingerprint: int) -> str:
    """Return what a packing is called in every process.

    The library's fingerprint has two parts: which packing, and a digest of what this
    machine makes of it.
    """
    found = library.xnn.xnn_get_fingerprint(fingerprint)
    value = found.contents.value if found else 0
    return f"{identity.digest.hex()}-{seed:08x}-{fingerprint:08x}-{value:08x}"


def digest_in(key: str) -> str:
    """Return the digest of the identity, in hexadecimal, that `entry_key` put in."""
    return key.partition("-")[0]
