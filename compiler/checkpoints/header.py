"""Read the header of a .safetensors file, and check every number in it.

The rules are those of the safetensors library (its README, "Format"): a length, a JSON
object, then the bytes of all tensors without gaps or overlaps. They are checked here
because the errors must name the tensor, and because the library maps the files that it
opens.
"""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import torch

from kvc.schema.checkpoints.problems import Problems
from kvc.schema.container.kinds import guess_kind
from kvc.schema.errors import shortened

_LENGTH_NBYTES: Final = 8
_MAX_HEADER_NBYTES: Final = 100_000_000  # the library's own limit
_LIMIT: Final = 1 << 62
_KIND_NBYTES: Final = 128
_MAX_RANK: Final = 64  # torch's own limit
_PICKLE: Final = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "U32": torch.uint32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


class Pickled(Problems):
    """The file is a pickle."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor as a header describes it.

    Attributes:
        kind: the dtype, by the format's name.
        shape: the sizes of the tensor.
        begin, end: offsets in bytes of the tensor's first byte and of the byte after
            its last one, counted from the end of the header.
    """

    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the dtype; None for a kind that kvc does not support."""
        return DTYPES.get(self.kind)


def read_header(fd: int, size: int) -> tuple[dict[str, TensorEntry], int]:
    """Return a file's tensors by name, and the offset at which their bytes begin.

    Raises:
        Problems: the entries of some tensors are wrong; the error lists all such
            entries.
        Pickled: the file is a pickle.
    """
    head = os.pread(fd, _LENGTH_NBYTES, 0)
    # A header's length may start with the bytes of a pickle, but is followed by "{".
    if head.startswith(_PICKLE) and os.pread(fd, 1, _LENGTH_NBYTES) != b"{":
        raise Pickled("it is a pickle")
    if len(head) < _LENGTH_NBYTES:
        raise Problems(f"it has {size} bytes, a header needs {_LENGTH_NBYTES}")
    nbytes = int.from_bytes(head, "little")
    start = _LENGTH_NBYTES + nbytes
    if nbytes > _MAX_HEADER_NBYTES:
        kind = guess_kind(os.pread(fd, _KIND_NBYTES, 0))
        raise Problems(f"it is no .safetensors file, or damaged: it looks like {kind}")
    raw = os.pread(fd, nbytes, _LENGTH_NBYTES)
    if len(raw) < nbytes:
        raise Problems(f"it is cut short: {size} bytes, its header ends at {start}")
    described = parse_object(raw)
    described.pop("__metadata__", None)
    entries, wrong = {}, []
    for name, description in described.items():
        try:
            entries[name] = _entry(description)
        except ValueError as error:
            wrong.append(f"tensor {name!r}: {error}")
    if wrong:
        raise Problems(*wrong)
    _check_places(entries, size - start, size)
    return entries, start


def parse_object(raw: bytes) -> dict[str, object]:
    """Return the members of a JSON object.

    Raises:
        Problems: the text is no JSON object, or a name occurs twice in it.
    """
    twice: list[str] = []

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice.extend(sorted(name for name, count in counts.items() if count > 1))
        return found

    try:
        found = json.loads(raw.decode(), object_pairs_hook=members)
    except (ValueError, RecursionError) as error:
        raise Problems(f"its JSON is damaged: {error}") from error
    if twice:
        raise Problems(*(f"{name!r} stands in its JSON twice" for name in twice))
    if not isinstance(found, dict):
        raise Problems("its JSON is not an object")
    return found


def _entry(description: object) -> TensorEntry:
    """Return the entry of a tensor in a header.

    Raises:
        ValueError: the description is incomplete or impossible.
    """
    members = ("dtype", "shape", "data_offsets")
    if not isinstance(description, dict) or description.keys() != set(members):
        raise ValueError(f"described by other than {', '.join(members)}")
    kind, shape, place = (description[member] for member in members)
    if not isinstance(kind, str):
        raise ValueError(f"its dtype is {kind!r}")
    if not _are_sizes(shape):
        raise ValueError(f"its shape is {shape!r}")
    if not _are_sizes(place) or len(place) != 2 or place[0] > place[1]:
        raise ValueError(f"its bytes are {place!r}")
    entry = TensorEntry(kind, tuple(shape), *place)
    dtype, given = entry.dtype, entry.end - entry.begin
    if dtype is None:
        return entry
    # Sizes come from a file: the product of many is slow to compute, too long to print.
    if len(shape) > _MAX_RANK:
        raise ValueError(f"its shape has {len(shape)} sizes, {_MAX_RANK} are possible")
    count = prod(shape)
    if count >= _LIMIT:
        raise ValueError(f"its shape is {list(shape)}: too many elements")
    needed = count * dtype.itemsize
    if needed != given:
        raise ValueError(f"{kind} {shape} takes {needed} bytes, it has {given}")
    return entry


def _are_sizes(numbers: object) -> bool:
    return isinstance(numbers, list) and all(
        type(number) is int and 0 <= number < _LIMIT for number in numbers
    )


def _check_places(entries: Mapping[str, TensorEntry], nbytes: int, size: int) -> None:
    """Check that tensors are contiguous and fill the file.

    Raises:
        Problems: tensors overlap or leave gaps; the error lists all such tensors.
    """
    wrong, reached = [], 0
    for name, entry in sorted(entries.items(), key=lambda e: (e[1].begin, e[1].end)):
        if entry.begin != reached:
            what = (
                "overlaps the tensor before"
                if entry.begin < reached
                else "leaves a hole before"
            )
            wrong.append(
                f"tensor {name!r} {what} it: it begins at {entry.begin}, not {reached}"
            )
        reached = max(reached, entry.end)
    if reached > nbytes:
        cut = [repr(name) for name, entry in entries.items() if entry.end > nbytes]
        end = size - nbytes + reached
        places = f"{size} bytes, its tensors end at {end}"
        count = f"{len(cut)} of its {len(entries)} tensors are not whole"
        wrong.append(f"it is cut short: {places}; {count}: {shortened(cut)}")
    elif reached < nbytes:
        wrong.append(f"{nbytes - reached} bytes after its tensors belong to none")
    if wrong:
        raise Problems(*wrong)
