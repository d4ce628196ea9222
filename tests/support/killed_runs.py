"""Check the files that a killed run left: the old ones or the new ones, each whole.

In: a folder, its files before the run, and the files after a run that was not killed.
Out: a list of what is wrong. Temporary files may lie in the folder until the next run.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from kvc.runtime.sessions.snapshot_files import SnapshotFile
from kvc.schema.container import verify_file
from kvc.schema.container.temporary import TEMPORARY
from kvc.schema.errors import KvcError

Contents = Mapping[str, str]  # the digest of each file, by its name


class Judge:
    """Says what is wrong with the files that killed runs of one kind left."""

    def __init__(self, before: Contents, after: Contents) -> None:
        self._before, self._after = before, after
        self._whole: set[frozenset[tuple[str, str]]] = set()

    def stage(self, folder: Path) -> str:
        """Return how far a killed run came: "before", "between" or "after" its renames.

        Temporary files do not count.
        """
        found, _ = apart(folder)
        if found == self._before:
            return "before"
        return "after" if found == self._after else "between"

    def findings(self, folder: Path) -> list[str]:
        """Return what is wrong with a folder after a killed run, empty for nothing.

        A file is wrong if it is lost, damaged, or neither the old nor the new one.
        """
        found, _ = apart(folder)
        wrong = []
        for name in sorted(found.keys() | self._before.keys() | self._after.keys()):
            content = found.get(name)
            if content not in (self._before.get(name), self._after.get(name)):
                what = "is lost" if content is None else "is neither old nor new"
                wrong.append(f"{name} {what}")
        return wrong or self._damaged(folder, found)

    def after_next(self, folder: Path) -> list[str]:
        """Return what is wrong after the next run, which was not killed."""
        found, leftovers = apart(folder)
        wrong = [f"{name} is left over" for name in leftovers]
        if found != self._after:
            wrong.append(f"the next run made {found}, not {self._after}")
        return wrong

    def _damaged(self, folder: Path, found: Contents) -> list[str]:
        """Return which files do not verify.

        Contents that were found whole once are not read again.
        """
        key = frozenset(found.items())
        if key in self._whole:
            return []
        wrong = []
        for name in found:
            try:
                _verify(folder / name)
            except KvcError as error:
                wrong.append(f"{name}: {error}")
        if not wrong:
            self._whole.add(key)
        return wrong


def apart(folder: Path) -> tuple[Contents, list[str]]:
    found, leftovers = {}, []
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name):
            leftovers.append(path.name)
        else:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found, leftovers


def _verify(path: Path) -> None:
    """Read all of a file; raise `KvcError` if it is damaged."""
    if path.suffix == ".kvcs":
        SnapshotFile(path).close()
    else:
        verify_file(path, ())
