"""The identity of a packed weight: a digest of its contents and of how it is packed.

In: a program and names of its data. Out: identities that are equal if the packed bytes
are equal, in every process.
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
    """A weight with its scales, bias and layout; compared by digest.

    Attributes:
        digest: digest of contents, dtypes, shapes, layout and the call that packs.
        weight: name of the weight.
        layout: the layout of the weight's bytes for the library.
        nbytes: the size of the weight in bytes.
        packed_bound: an upper bound on the size in bytes of any packing of the weight.
    """

    digest: bytes
    weight: str = field(compare=False)
    layout: str = field(compare=False)
    nbytes: int = field(compare=False)
    packed_bound: int = field(compare=False)

    @property
    def is_asked_for(self) -> bool:
        """Tell whether XNNPACK looks for the packed weight in the cache before packing.

        XNNPACK does not look for constants of batches of matrices, which it packs into
        memory of each runtime, nor for transposed convolutions, whose packed weights it
        adds to the cache without a lookup.
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

    The library's own number for a packed weight can be equal for weights of different
    shapes, or of convolutions with different groups. Therefore all arguments of an
    operator's creation are part of the identity.

    Args:
        program: the program with the names.
        names: ids of the weight, its scales and its bias; None for a missing one.
        layout: the layout of the weight's bytes.
        shape: the weight's shape as passed to the library.
        call: the function that packs the weight, with its numeric arguments.
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
    """Return an upper bound on the size in bytes of a weight after any packing.

    Kernels add at most 256 rows and columns to a matrix of elements of at most 8 bytes,
    and less than 64 bytes per row. Padding makes any other weight at most 256 times as
    large.
    """
    if len(shape) == 2:
        rows, columns = (size + 256 for size in shape)
        return 8 * rows * columns + 64 * (rows + columns)
    return 16 * nbytes + (nbytes + 256) * 256


def _describe(program: Program, name: int) -> bytes:
    named = program.names[name]
    # The type is included: the same bytes as [2, 3] and as [3, 2] have the same seed.
    return program.blobs[named.blob].digest + f"+{named.type}".encode()


def entry_key(library: Library, identity: Identity, seed: int, fingerprint: int) -> str:
    """Return a name for a packed weight, which is the same in every process.

    The name contains the library's fingerprint of the packing. The fingerprint has two
    parts: the kind of packing, and a digest of a sample packed in this way on this
    machine.
    """
    found = library.xnn.xnn_get_fingerprint(fingerprint)
    value = found.contents.value if found else 0
    return f"{identity.digest.hex()}-{seed:08x}-{fingerprint:08x}-{value:08x}"


def digest_in(key: str) -> str:
    """Return the hexadecimal digest of the identity, from a key made by `entry_key`."""
    return key.partition("-")[0]
