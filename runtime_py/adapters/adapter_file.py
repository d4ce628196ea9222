"""The file format of adapters, `.kva`: low-rank matrices for the slots of a program.

A file is a `CheckedFile`. Its header names the program by identity, and for each layer
that the adapter changes the dtype and shape of each part (`schema/adapters.py`), whose
bytes follow in that order. In: a path, or the parts of an adapter. Out: the parts,
checked against the slots of a program; or a file.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from kvc.runtime.data.checked_file import CheckedFile, write_checked
from kvc.runtime.memory.arrays import Array
from kvc.schema.adapters import FACTORS, GAIN, OFFSET, A, B, slots_of
from kvc.schema.container import ADAPTER_MAGIC, path_text
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadAdapter, listing
from kvc.schema.frozen import frozen
from kvc.schema.model import Program

VERSION: Final = 0
STORED: Final = (A, B, FACTORS, GAIN, OFFSET)  # the parts that a file can have
_DTYPES: Final = {kind.label: kind for kind in (DType.FLOAT32, DType.INT8)}
_HINT: Final = "; compile the bundle with --adapters COUNT"
_MOST: Final = 1 << 31  # of a size
Layers = Mapping[str, Mapping[str, Array]]  # path of a layer -> part -> array


@frozen
class _Part:
    """A part of an adapter in a file.

    Attributes:
        path: the path of the layer.
        name: the part, one of `STORED`.
        dtype: the dtype of the elements.
        shape: the sizes.
    """

    path: str
    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the number of bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class AdapterFile(CheckedFile):
    """An open file of an adapter, whose digest and form have been checked.

    Attributes:
        parts: the parts, in the order of the file.
        program: the identity of the program that the adapter is for.
    """

    magic = ADAPTER_MAGIC
    what = "an adapter (.kva)"
    newest = VERSION

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file and check its bytes.

        Raises:
            BadSetting: `path` is not a path.
            FileProblem: the system cannot read the file.
            BadAdapter: the file is not an adapter, or is damaged.
        """
        super().__init__(path)
        try:
            found = self.content
            known = set(found) == {"program", "layers"}
            self.require(known, "its header has other parts")
            program, layers = found["program"], found["layers"]
            self.require(isinstance(program, str), "it names no program")
            self.program = str(program)
            self.parts = tuple(self._read_parts(layers))
            there = self.nbytes - self.start - len(self.digest)
            nbytes = sum(part.nbytes for part in self.parts)
            self.require(nbytes == there, f"it has {there} bytes of {nbytes}")
        except BaseException:
            self.close()
            raise

    def problem(self, reason: str) -> BadAdapter:
        """Return the error that says why the file is refused."""
        return BadAdapter(path=self.path, reason=reason)

    def layers(self, program: Program, identity: str) -> Layers:
        """Return the parts of the adapter, which fit the slots of a program.

        Raises:
            BadAdapter: the adapter is for another program, or does not fit the slots.
            FileProblem: the file can no longer be read.
        """
        own, other = identity[:16], self.program[:16]  # as in `kvc dump`
        of = (
            f"it is for program {other}, this one is {own}; make it again from its "
            "folder, with `kvc adapter FOLDER --base` and this bundle"
        )
        self.require(self.program == identity, of)
        _check_parts(self.path, self.parts, program)
        begins = accumulate((part.nbytes for part in self.parts), initial=0)
        found: dict[str, dict[str, Array]] = {}
        for part, begin in zip(self.parts, begins, strict=False):
            content = self.read_array(begin, part.shape, part.dtype.numpy)
            finite = bool(np.isfinite(content).all())
            self.require(finite, f"{part.path}.{part.name} is not finite")
            found.setdefault(part.path, {})[part.name] = content
        return found

    def _read_parts(self, layers: object) -> Iterator[_Part]:
        self.require(isinstance(layers, dict) and bool(layers), "it has no layers")
        assert isinstance(layers, dict)
        for path, parts in layers.items():
            known = isinstance(parts, dict) and {B} <= set(parts) <= set(STORED)
            self.require(known, f"{path} has other parts")
            for name, kind in parts.items():
                self.require(_is_kind(kind), f"{path}.{name} is {kind!r}")
                yield _Part(path, name, _DTYPES[kind[0]], tuple(kind[1]))


def check_fit(path: str, layers: Layers, program: Program) -> None:
    """Check that an adapter which is to be written fits the slots of a program.

    Args:
        path: what the adapter is made of, for the message.
        layers: the parts by layer.
        program: the program.

    Raises:
        BadAdapter: it does not fit, or has numbers that are not finite.
    """
    parts = []
    for layer, arrays in layers.items():
        for name, array in arrays.items():
            finite = bool(np.isfinite(array).all())
            _require(path, finite, f"{layer}.{name} is not finite")
            parts.append(_Part(layer, name, _dtype_of(array), array.shape))
    _check_parts(path, parts, program)


def _check_parts(path: str, parts: Sequence[_Part], program: Program) -> None:
    """Check the parts of an adapter against the slots of a program."""
    slots = slots_of(program)
    missing = sorted({part.path for part in parts} - slots.keys())
    what = f"the program has no slots for {listing(missing)}"
    _require(path, not missing, what)
    for part in parts:
        where = f"{part.path}.{part.name}"
        slot = slots[part.path].get(part.name)
        hint = f"{_HINT},dora" if part.name in (GAIN, OFFSET) else ""
        what = f"the program has no slot for {where}{hint}"
        _require(path, slot is not None, what)
        assert slot is not None
        kind = slot[1].type.dtype
        what = f"{where} is {part.dtype.label}, the slots are {kind.label}"
        _require(path, part.dtype is kind, what)
        _check_shape(path, part, where, list(slot[1].type.dims[1:]))
    ranks = {(part.path, part.name): part.shape[0] for part in parts}
    for layer in {part.path for part in parts}:
        b = ranks[layer, B]
        same = {ranks.get((layer, name), b) for name in (A, FACTORS)} == {b}
        there = (
            ((layer, name) in ranks) == (name in slots[layer]) for name in (A, FACTORS)
        )
        fits = same and all(there)
        _require(path, fits, f"the matrices of {layer} do not go together")


def _check_shape(path: str, part: _Part, where: str, own: list[object]) -> None:
    """Check the shape of a part against that of its slot, `own`."""
    found = list(part.shape)
    if part.name in (GAIN, OFFSET):
        _require(path, found == own, f"{where} is {found}, expected {own}")
        return
    most, *rest = own
    fits = len(found) == len(own) and found[1:] == rest
    expected = ", ".join(map(str, ("rank", *rest)))
    _require(path, fits, f"{where} is {found}, expected [{expected}]")
    assert isinstance(most, int)
    what = f"{where} has rank {found[0]}, the slots at most {most}"
    _require(path, 1 <= found[0] <= most, f"{what}{_HINT},rank={found[0]}")


def _require(path: str, condition: bool, reason: str) -> None:
    if not condition:
        raise BadAdapter(path=path, reason=reason)


def write_adapter(path: str | os.PathLike[str], identity: str, layers: Layers) -> None:
    """Write an adapter for the program of an identity, completely or not at all.

    Args:
        path: the path of the file.
        identity: the identity of the program.
        layers: the parts by layer, of the dtypes of the program's slots.

    Raises:
        BadSetting: `path` is not a path.
        CannotWrite: the system refuses the write; the old file is untouched.
        Unsynced: the file is written, but may not survive a crash of the system.
    """
    said = {
        layer: {name: _kind_of(array) for name, array in sorted(parts.items())}
        for layer, parts in sorted(layers.items())
    }
    header = json.dumps({"program": identity, "layers": said}, separators=(",", ":"))
    arrays = (layers[layer][name] for layer, parts in said.items() for name in parts)
    content = (np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in arrays)
    write_checked(path_text(path), ADAPTER_MAGIC, VERSION, header.encode(), content)


def _kind_of(array: Array) -> list[object]:
    return [_dtype_of(array).label, list(array.shape)]


def _dtype_of(array: Array) -> DType:
    dtype = DType.from_numpy(array.dtype)
    assert dtype is not None, "float32 or int8"
    return dtype


def _is_kind(kind: object) -> bool:
    """Tell whether JSON is a dtype and a shape."""
    if not isinstance(kind, list) or len(kind) != 2 or not isinstance(kind[1], list):
        return False
    sizes = all(type(size) is int and 0 < size < _MOST for size in kind[1])
    return isinstance(kind[0], str) and kind[0] in _DTYPES and sizes
