"""`RowFile`: the rows of a sweep as lines of JSON, which a later run goes on with.

A line has a row, and under `of` what the row depends on beside its model and recipe. A
last line that was torn is cut off, and a damaged one is left out, so that its row is
done again.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from kvc.ray.sweeper import SweepRow
from kvc.schema.closing import Closing
from kvc.schema.errors import BatchRunning, CannotWrite, FileProblem, reason_of

Key = tuple[str, str]  # model and recipe


class RowFile(Closing):
    """An open file of rows; one process at a time has it.

    Attributes:
        rows: the rows of this text and these settings, by model and recipe.
    """

    def __init__(self, path: Path, of: Mapping[str, object]) -> None:
        """Open a file, and read the rows that it has.

        Args:
            path: the file; it is made if it is not there.
            of: what rows depend on. Rows of anything else stay in the file.

        Raises:
            FileProblem: the file cannot be opened or read.
            BatchRunning: another process has it.
        """
        self._path, self._of = path, json.loads(json.dumps(of))
        self.rows = dict[Key, SweepRow]()
        try:
            self._file = path.open("a+b")
        except (OSError, ValueError) as error:
            raise FileProblem(path=str(path), reason=reason_of(error)) from error
        try:
            self._lock()
            self._read()
        except OSError as error:
            self.close()
            raise FileProblem(path=str(path), reason=reason_of(error)) from error
        except BaseException:
            self.close()
            raise

    @classmethod
    def opened(cls, path: str | os.PathLike[str], of: Mapping[str, object]) -> Self:
        """Open a file; the arguments are those of `__init__`."""
        return cls(Path(path), of)

    def add(self, row: SweepRow) -> None:
        """Append a row, and write it to disk.

        Raises:
            CannotWrite: the system refuses, for example because the disk is full.
        """
        line = json.dumps({**asdict(row), "of": self._of}, ensure_ascii=False)
        try:
            self._file.write(line.encode("utf-8", "backslashreplace") + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            path = str(self._path)
            raise CannotWrite(path=path, reason=reason_of(error)) from error
        self.rows[row.model, row.recipe] = row

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BatchRunning(path=str(self._path)) from error
        except OSError:
            pass  # a file system without locks

    def _read(self) -> None:
        """Read the rows, and cut off a last line that was torn."""
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        for line in content[:whole].splitlines():
            with suppress(ValueError, TypeError, AttributeError, KeyError):
                self._note(json.loads(line))

    def _note(self, told: dict[str, Any]) -> None:
        """Take the row of a line, if it is one of these settings."""
        if told.pop("of") == self._of:
            row = SweepRow(**told)
            self.rows[row.model, row.recipe] = row
