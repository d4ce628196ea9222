"""`OpenFile`: a file of weights that was opened once, and is read with `pread`.

Such files are never mapped: a truncated file would kill a process that maps it, while a
read reports it.
"""

import os
import stat
import weakref
from abc import ABC, abstractmethod
from typing import Final, Self

from kvc.schema.checkpoints.problems import Problems, shown
from kvc.schema.errors import CheckpointChanged, reason_of

_OPEN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class OpenFile(ABC):
    """An open file of weights, whose header is read; its tensors keep it open.

    Attributes:
        path: the path of the file as the caller gave it.
        descriptor: the file's descriptor.
        nbytes: the size of the file when it was opened.
    """

    def __init__(self, path: str) -> None:
        """Open a file and read its header.

        Raises:
            Problems: the file cannot be opened, is not a plain file, is damaged, or is
                cut short.
        """
        self.path = path
        try:
            self.descriptor = os.open(path, _OPEN)
        except (OSError, ValueError) as error:
            raise Problems(reason_of(error)) from error
        self.close = weakref.finalize(self, os.close, self.descriptor)
        try:
            if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
                raise Problems("it is not a plain file")
            self._identity = _identity(self.descriptor)
            self.nbytes = self._identity[0]
            self._read_header()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _read_header(self) -> None:
        """Read the header of the open file.

        Raises:
            Problems: the file is damaged, or cut short.
        """

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        """Fill `target` with bytes of the tensor `name`, from `offset` in the file.

        Raises:
            CheckpointChanged: the file is closed, cannot be read, or has another size
                or time of change than when it was opened.
        """
        if not self.close.alive:
            closed = "the Checkpoint was closed before the bundle was saved"
            raise self._unreadable(name, f"{closed}; save inside of the `with` block")
        at, rest = offset, target
        try:
            while rest.nbytes and (count := os.preadv(self.descriptor, [rest], at)):
                rest, at = rest[count:], at + count
            same = _identity(self.descriptor) == self._identity
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
