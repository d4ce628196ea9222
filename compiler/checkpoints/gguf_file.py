"""`GgufCheckpoint`: the tensors of a GGUF file, or of the parts of a split one.

Tensors are read when needed, a few rows at a time, and are float32 to whoever reads
their elements. Matrices of a quantized type have a `StoredLayout`, too.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvc.compiler.checkpoints.gguf_layouts import LAYOUTS, dequantized, stored_rows
from kvc.compiler.checkpoints.open_file import OpenFile
from kvc.compiler.weights.stored_layout import StoredLayout, StoredRows
from kvc.schema.checkpoints.gguf_header import (
    SUFFIX,
    GgufEntry,
    GgufHeader,
    Metadata,
    read_gguf_header,
)
from kvc.schema.checkpoints.problems import Problems, bad_checkpoint, shown
from kvc.schema.closing import Closing
from kvc.schema.container import path_text
from kvc.schema.errors import CheckpointError

_PART: Final = re.compile(rf"(.+)-(\d{{5}})-of-(\d{{5}})\{SUFFIX}")
# Types of elements that torch has; all others are read as float32.
_PLAIN: Final = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F64": torch.float64, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64,
}  # fmt: skip


class _GgufFile(OpenFile):
    """An open GGUF file, whose header has been read."""

    header: GgufHeader

    def _read_header(self) -> None:
        self.header = read_gguf_header(self.descriptor, self.nbytes)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in a GGUF file; it is read on demand.

    Attributes:
        file: the file.
        name: the tensor's name in the file.
        entry: the tensor's type, sizes and place.
    """

    file: _GgufFile
    name: str
    entry: GgufEntry

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the tensor, in torch's order."""
        return self.entry.shape

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the elements: float32 for those of quantized types."""
        return _PLAIN.get(self.entry.kind, torch.float32)

    @property
    def kind(self) -> str:
        """Return the name that the file format has for the tensor's type."""
        return self.entry.kind

    @property
    def path(self) -> str:
        """Return the path of the tensor's file."""
        return self.file.path

    @property
    def layout(self) -> StoredLayout | None:
        """Return how products can use the tensor as it is stored; None: not at all."""
        return LAYOUTS.get(self.kind) if len(self.shape) == 2 else None

    def elements(self, begin: int, end: int) -> Tensor:
        """Read the elements `begin` to `end` - 1, in order, as a flat tensor.

        Raises:
            CheckpointChanged: the file has changed since it was opened.
        """
        width = max(1, self.shape[-1] if self.shape else 1)
        first, last = begin // width, -(-end // width)
        raw = self._bytes(first, last)
        if self.kind in _PLAIN:
            flat = torch.from_numpy(raw.reshape(-1)).view(self.dtype)
        else:
            flat = torch.from_numpy(dequantized(self.kind, raw)).reshape(-1)
        return flat[begin - first * width : end - first * width]

    def stored_rows(self, begin: int, end: int) -> StoredRows:
        """Read the rows `begin` to `end` - 1 as `layout` describes them.

        Raises:
            CheckpointChanged: the file has changed since it was opened.
        """
        return stored_rows(self.kind, self._bytes(begin, end))

    def _bytes(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of rows along the last axis: uint8 [rows, nbytes]."""
        nbytes = self.entry.row_nbytes
        raw = np.empty((last - first, nbytes), np.uint8)
        if raw.size:
            offset = self.entry.begin + first * nbytes
            self.file.read_into(self.name, offset, raw.data.cast("B"))
        return raw


class GgufCheckpoint(Closing):
    """Weights and metadata in GGUF files, of which only headers have been read.

    Tensors taken from a checkpoint keep its files open.

    Attributes:
        path: the path of the first file.
        metadata: the entries of metadata of the first file, by key.
        types: key -> numbers of the entry's types, as in `GgufHeader`.
        tensors: all tensors of all files by name.
    """

    path: str
    metadata: Mapping[str, Metadata]
    types: Mapping[str, tuple[int, ...]]
    tensors: Mapping[str, GgufTensor]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a checkpoint and read its headers.

        Args:
            path: a .gguf file, any of the files of a model that is split, or a folder
                that has one model of .gguf files.

        Raises:
            BadCheckpoint: files are damaged or missing; the error lists all problems.
            CheckpointError: there is no such file, or several models.
        """
        files = _files(Path(path_text(path)))
        self.path = str(files[0])
        self._files, wrong = list[_GgufFile](), list[str]()
        for file in files:
            try:
                self._files.append(_GgufFile(str(file)))
            except Problems as error:
                wrong += [f"{file.name}: {reason}" for reason in error.reasons]
        tensors = dict[str, GgufTensor]()
        for opened in self._files:
            for name, entry in opened.header.tensors.items():
                if name in tensors:
                    wrong.append(f"tensor {name!r} is in two files")
                tensors[name] = GgufTensor(opened, name, entry)
        wrong += [
            f"tensor {shown(name)}: kvc reads no elements of type {tensor.kind}"
            for name, tensor in tensors.items()
            if tensor.kind not in {*_PLAIN, *LAYOUTS}
        ]
        if not wrong and not tensors:
            wrong.append(f"{files[0].name}: it has no tensors")
        if wrong:
            self.close()
            raise bad_checkpoint(wrong, self.path)
        self.metadata = MappingProxyType(self._files[0].header.metadata)
        self.types = MappingProxyType(self._files[0].header.types)
        self.tensors = MappingProxyType(tensors)

    def __repr__(self) -> str:
        return f"<GgufCheckpoint {self.path}: {len(self.tensors)} tensors>"

    def close(self) -> None:
        """Close the files; reading a tensor afterwards is an error."""
        for file in self._files:
            file.close()


def gguf_files(folder: Path) -> list[Path]:
    """Return the .gguf files of a folder that begin a model, in the order of names.

    Projectors of pictures (mmproj) are models beside one, and are left out.
    """
    found = sorted(each for each in folder.glob(f"*{SUFFIX}") if each.is_file())
    firsts = [each for each in found if _number(each) in (0, 1)]
    return [each for each in firsts if not each.name.startswith("mmproj")]


def _number(file: Path) -> int:
    """Return the number of a file among those of a split model; 0 for a whole one."""
    parts = _PART.fullmatch(file.name)
    return int(parts[2]) if parts else 0


def _files(path: Path) -> list[Path]:
    """Return the files of a model.

    Raises:
        CheckpointError: there are none, or several models, or a part is missing.
    """
    if path.is_dir():
        found = gguf_files(path)
        if len(found) != 1:
            listed = ", ".join(each.name for each in found)
            several = f"the folder has several models, {listed}; give the path of one"
            reason = several if found else f"the folder has no {SUFFIX} file"
            raise CheckpointError(path=str(path), reason=reason)
        path = found[0]
    if not path.exists():
        reason = "there is no such file or folder"
        raise CheckpointError(path=str(path), reason=reason)
    parts = _PART.fullmatch(path.name)
    if parts is None:
        return [path]
    names = [
        f"{parts[1]}-{i + 1:05}-of-{parts[3]}{SUFFIX}" for i in range(int(parts[3]))
    ]
    files = [path.parent / name for name in names]
    missing = [file.name for file in files if not file.exists()]
    if not files:
        reason = f"{path.name} is a part of a model of 0 parts"
        raise CheckpointError(path=str(path), reason=reason)
    if missing:
        reason = f"the model is split, and {', '.join(missing[:10])} is missing"
        raise CheckpointError(path=str(path), reason=reason)
    return files
