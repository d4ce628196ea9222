"""`TensorFile`: one open .safetensors file, and `FileTensor`, a tensor in it.

Opening reads only the header.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kvc.compiler.checkpoints.header import TensorEntry, read_header
from kvc.compiler.checkpoints.open_file import OpenFile


class TensorFile(OpenFile):
    """An open .safetensors file.

    Attributes:
        entries: the tensors that the header describes, by name.
        start: the offset in the file at which the bytes of tensors begin.
    """

    def _read_header(self) -> None:
        self.entries, self.start = read_header(self.descriptor, self.nbytes)


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor in a file; it is read on demand.

    Attributes:
        file: the file.
        name: the tensor's name in the file.
        entry: the tensor's dtype, shape and offsets in the file.
    """

    file: TensorFile
    name: str
    entry: TensorEntry

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the tensor."""
        return self.entry.shape

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the dtype of the tensor; None if torch or kvc does not have it."""
        return self.entry.dtype

    @property
    def kind(self) -> str:
        """Return the name that the file format has for the tensor's dtype."""
        return self.entry.kind

    @property
    def path(self) -> str:
        """Return the path of the tensor's file."""
        return self.file.path

    def elements(self, begin: int, end: int) -> Tensor:
        """Read the elements `begin` to `end` - 1, in order, as a flat tensor.

        Raises:
            CheckpointChanged: the file has changed since it was opened.
        """
        assert self.dtype is not None, "a tensor of an unknown dtype is never read"
        part = torch.empty(end - begin, dtype=self.dtype)
        if end > begin:
            target = part.view(torch.uint8).numpy().data
            start = self.file.start + self.entry.begin + begin * part.itemsize
            self.file.read_into(self.name, start, target)
        return part
