"""`TensorFile`: one open .safetensors file, and `FileTensor`, a tensor in it.

Opening reads only the header. Tensors are read with `pread`, never mapped: a truncated
file would kill a process that maps it, while a read reports it.
"""

import os
import stat
import weakref
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from kvc.compiler.checkpoints.header import Problems, TensorEntry, read_header, shown
from kvc.schema.errors import CheckpointChanged, reason_of

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class TensorFile:
    """An open .safetensors file; tensors taken from the file keep it open.

    Attributes:
        path: the path of the file as the caller gave it.
        entries: the tensors that the header describes, by name.
    """

    def __init__(self, path: str) -> None:
        """Open a file and read its header.

        Raises:
            Problems: the file cannot be opened, is damaged, or is cut short.
        """
        self.path = path
        try:
            self._fd = os.open(path, _OPEN)
        except (OSError, ValueError) as error:
            raise Problems(reason_of(error)) from error
        self.close = weakref.finalize(self, os.close, self._fd)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise Problems("it is not a plain file")
            self._identity = _identity(self._fd)
            self.entries, self._start = read_header(self._fd, self._identity[0])
        except BaseException:
            self.close()
            raise

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        """Fill `target` with bytes of a tensor.

        The bytes begin at `offset`, counted from the first byte after the header.

        Raises:
            CheckpointChanged: the file is closed, cannot be read, or has another size
                or time of change than when it was opened.
        """
        if not self.close.alive:
            closed = "the Checkpoint was closed before the bundle was saved"
            raise self._unreadable(name, f"{closed}; save inside of the `with` block")
        at, rest = self._start + offset, target
        try:
            while rest.nbytes and (count := os.preadv(self._fd, [rest], at)):
                rest, at = rest[count:], at + count
            same = _identity(self._fd) == self._identity
        except OSError as error:
            raise self._unreadable(name, reason_of(error)) from error
        if rest.nbytes or not same:
            changed = "the file changed after it was opened"
            raise self._unreadable(name, f"{changed}; open it again and compile anew")

    def __deepcopy__(self, memo: object) -> Self:
        """Return the file itself: copies of a model share it."""
        return self

    def _unreadable(self, name: str, reason: str) -> CheckpointChanged:
        return CheckpointChanged(path=self.path, tensor=shown(name), reason=reason)


def _identity(fd: int) -> tuple[int, int]:
    # The descriptor belongs to one inode: a new file of the same name does not matter.
    # A change that keeps size and time, within one tick of the clock, is not detected.
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns


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
            start = self.entry.begin + begin * part.itemsize
            self.file.read_into(self.name, start, target)
        return part
