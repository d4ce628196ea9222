"""Read arrays to calibrate with: .npy, .npz and .safetensors files, and check them.

In: the bytes of a file. Out: arrays by name, all of them numbers.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from kvc.runtime.calibration.token_calls import reads_tokens
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.program import Program
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadSamples, listing
from kvc.schema.frozen import frozen

_KINDS: Final = {
    "F64": DType.FLOAT64, "F32": DType.FLOAT32, "F16": DType.FLOAT16,
    "BF16": DType.BFLOAT16, "I64": DType.INT64, "I32": DType.INT32,
    "I16": DType.INT16, "I8": DType.INT8, "U8": DType.UINT8, "BOOL": DType.BOOL,
}  # fmt: skip
MOST_NBYTES: Final = 1 << 30  # of a file, and of what it unpacks to
_TOKENS: Final = "tokens"
_LENGTH_NBYTES: Final = 8


@frozen
class Arrays:
    """Arrays of a file.

    Attributes:
        by_name: as the file has them; "" is that of a .npy file.
        source: the file, for messages.
    """

    by_name: Mapping[str, Array]
    source: str = ""

    def sequences_for(self, program: Program) -> Sequence[Sequence[int]] | None:
        """Return the array as sequences of tokens for a language model, or None.

        Raises:
            BadSamples: tokens have a shape or a type that no tokens have.
        """
        if set(self.by_name) not in ({_TOKENS}, {""}) or not reads_tokens(program):
            return None
        (tokens,) = self.by_name.values()
        if tokens.dtype != np.int64 or tokens.ndim not in (1, 2):
            found = f"{tokens.dtype} {list(tokens.shape)}"
            reason = f"tokens are int64 [tokens] or [sequences, tokens], not {found}"
            raise BadSamples(source=self.source, reason=reason)
        if tokens.shape[-1] < 2:
            reason = "a sequence has 2 tokens or more"
            raise BadSamples(source=self.source, reason=reason)
        return [tuple(row) for row in np.atleast_2d(tokens).tolist()]


def read_arrays(source: str, raw: bytes) -> Arrays:
    """Return the arrays of a file.

    Raises:
        BadSamples: it is damaged, has no arrays, or one is empty or holds a NaN or an
            infinity.
    """
    try:
        found = dict(_arrays(source, raw))
    except Exception as error:  # numpy, zipfile and zlib have a dozen kinds
        reason = f"no file of arrays, or damaged: {error}"
        raise BadSamples(source=source, reason=reason) from error
    if not found:
        raise BadSamples(source=source, reason="the file has no arrays")
    for name, array in found.items():
        _check(source, name, array)
    return Arrays(found, source)


def _check(source: str, name: str, array: Array) -> None:
    shown = f"array {name!r}" if name else "the array"
    if not array.size:
        raise BadSamples(source=source, reason=f"{shown} is empty")
    kind = DType.from_numpy(array.dtype)
    if kind is None:
        known = listing([one.label for one in DType])
        reason = f"{shown} is {array.dtype}; known are {known}"
        raise BadSamples(source=source, reason=reason)
    if kind.is_floating and not np.isfinite(array.astype(np.float64)).all():
        raise BadSamples(source=source, reason=f"{shown} holds a NaN or an infinity")


def _arrays(source: str, raw: bytes) -> Iterator[tuple[str, Array]]:
    if source.endswith(".safetensors"):
        yield from _safetensors(raw)
        return
    loaded = np.load(io.BytesIO(raw), allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        yield "", loaded
        return
    with loaded as archive:
        nbytes = sum(entry.file_size for entry in archive.zip.infolist())
        if nbytes > MOST_NBYTES:
            raise ValueError(f"it unpacks to {nbytes} bytes, more than {MOST_NBYTES}")
        for name in archive.files:
            array = archive[name]
            if not isinstance(array, np.ndarray):
                raise TypeError(f"{name!r} is no array")
            yield name, array


def _safetensors(raw: bytes) -> Iterator[tuple[str, Array]]:
    """Yield the tensors of a .safetensors file.

    Raises:
        ValueError, KeyError, TypeError, OverflowError: it is damaged.
    """
    start = _LENGTH_NBYTES + int.from_bytes(raw[:_LENGTH_NBYTES], "little")
    if start > len(raw):
        raise ValueError(f"{len(raw)} bytes, its header ends at {start}")
    described = json.loads(raw[_LENGTH_NBYTES:start])
    if not isinstance(described, dict):
        raise TypeError("its header names no tensors")
    for name, entry in described.items():
        if name == "__metadata__":
            continue
        dtype = _KINDS[entry["dtype"]].numpy
        begin, end = map(int, entry["data_offsets"])
        shape = tuple(int(size) for size in entry["shape"])
        if not 0 <= begin <= end <= len(raw) - start or min(shape, default=0) < 0:
            raise ValueError(f"tensor {name!r} lies outside of the file")
        if end - begin != prod(shape) * dtype.itemsize:
            raise ValueError(f"tensor {name!r} of {shape} has {end - begin} bytes")
        flat = np.frombuffer(raw[start + begin : start + end], dtype)
        yield name, flat.reshape(shape)
