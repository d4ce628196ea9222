"""Raise `BadProgram` and `LimitExceeded` with the file's path and the place in it."""

from typing import NoReturn

from kvc.schema.errors import BadProgram, LimitExceeded
from kvc.schema.verify.limits import MAX_NAME_NBYTES


class Reporter:
    """Raises errors about one file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def fail(self, where: str, what: str) -> NoReturn:
        """Raise `BadProgram`."""
        raise BadProgram(path=self.path, where=where, what=what)

    def require(self, condition: bool, where: str, what: str) -> None:
        """Raise `BadProgram` unless the condition holds."""
        if not condition:
            self.fail(where, what)

    def limit(self, what: str, found: int, limit: int) -> None:
        """Raise `LimitExceeded` when there is more than the limit."""
        if found > limit:
            raise LimitExceeded(path=self.path, what=what, found=found, limit=limit)

    def name(self, name: str, where: str) -> None:
        """Check that a name is not empty, not long, and can be printed as it is."""
        self.require(bool(name), where, "a name is empty")
        self.text(name, where)

    def text(self, text: str, where: str) -> None:
        """Check that a short text can be printed as it is."""
        if len(text.encode()) > MAX_NAME_NBYTES:
            self.fail(where, f"{text[:40]!r}... is longer than {MAX_NAME_NBYTES} bytes")
        if not text.isprintable():
            self.fail(where, f"{text!r} has characters that cannot be printed")

    def unique(self, names: list[str], where: str) -> None:
        """Check names, and that no two are equal."""
        if len(set(names)) != len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            self.fail(where, f"{twice!r} is there twice")
        for name in names:
            self.name(name, where)
