"""The file format of saved sessions: the header, then the bytes of each state.

In: a path. Out: the header, of which only the form is checked, and the arrays of
states, in program order. `snapshots.py` checks sizes and positions against the program.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Final

from kvc.runtime.data.checked_file import CheckedFile
from kvc.schema.container import SESSION_MAGIC
from kvc.schema.errors import BadSnapshot
from kvc.schema.frozen import frozen

VERSION: Final = 1
MOST: Final = 1 << 62  # the greatest position, length or token id
_SINCE_1: Final[dict[str, object]] = {"position": None, "pending": []}
_LEFT_OUT: Final[Mapping[str, Callable[[], object]]] = {
    "others": list,
    "attached": dict,
    "adapters": list,
}


@frozen
class Header:
    """The header of a saved session.

    Attributes:
        program: the identity of the program, in hexadecimal; in older files the digest
            of the program.
        sizes: the sizes of the symbols that the session fixed.
        capacity: how many tokens a row can hold, None if there is no limit.
        position: the position of each row, None if the program has no position; not in
            version 0.
        pending: the tokens of each row that are to run next, empty for none; not in
            version 0.
        counted: the position of each row at the first cursor, if the session counts it.
        others: for each cursor but the first, the position of each row, if the session
            counts it; left out of the file if no other cursor exists.
        lengths: the lengths of growing states; 0 for other states.
        written: how many slots are saved of each cache whose slots after the position
            are unused.
        reached: for each row the furthest position that its ring buffers were written
            at; empty without ring buffers.
        states: the name, dtype, saved shape and byte count of each state.
        attached: what the saver of the session adds, such as a conversation; left out
            of the file if it is empty.
        adapters: the adapter of each row: name, digest of its file, and scale, or
            empty for none; left out of the file if no row has any.
    """

    program: str
    sizes: Mapping[str, int]
    capacity: int | None
    position: Sequence[int] | None
    pending: Sequence[Sequence[int]]
    counted: Sequence[int]
    others: Sequence[Sequence[int]]
    lengths: Sequence[int]
    written: int
    reached: Sequence[int]
    states: Sequence[Mapping[str, object]]
    attached: Mapping[str, object]
    adapters: Sequence[Sequence[object]]

    def as_written(self) -> dict[str, object]:
        """Return the header fields to write, without those that may be left out."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _LEFT_OUT:
            if not content[name]:
                del content[name]
        return content


class SnapshotFile(CheckedFile):
    """An open file of a saved session, whose digest has been checked.

    Attributes:
        header: the header of the file, of which the form has been checked.
    """

    magic = SESSION_MAGIC
    what = "a saved session"
    newest = VERSION

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file and check its bytes.

        Raises:
            BadSetting: `path` is not a path.
            FileProblem: the system cannot read the file.
            BadSnapshot: the file is not a saved session, or is damaged.
        """
        super().__init__(path)
        try:
            self.header = self._checked_header()
        except BaseException:
            self.close()
            raise

    def problem(self, reason: str) -> BadSnapshot:
        """Return the error that says why the file is refused."""
        return BadSnapshot(path=self.path, reason=reason)

    def _checked_header(self) -> Header:
        found = self.content
        if self.version == 0:
            self.require(
                not found.keys() & _SINCE_1.keys(), "its header has other parts"
            )
            found = {**found, **_SINCE_1}
        found = {**{name: make() for name, make in _LEFT_OUT.items()}, **found}
        known = set(found) == {each.name for each in fields(Header)}
        self.require(known, "its header has other parts")
        for name, has_form in _FORMS.items():
            self.require(has_form(found[name]), f"{name} is {found[name]!r}")
        return Header(**found)  # type: ignore[arg-type]  # as checked


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _are_counts(values: object) -> bool:
    return isinstance(values, list) and all(map(_is_count, values))


def _is_adapter(value: object) -> bool:
    if not isinstance(value, list):
        return False
    kinds = [type(part) for part in value]
    known = kinds in ([str, str, float], [str, str, int])
    return not value or (known and abs(value[2]) <= sys.float_info.max)  # not for NaN


_FORMS: Final[Mapping[str, Callable[[object], bool]]] = {
    "program": lambda value: isinstance(value, str),
    "sizes": lambda value: isinstance(value, dict),
    "capacity": lambda value: value is None or _is_count(value),
    "position": lambda value: value is None or _are_counts(value),
    "pending": lambda value: isinstance(value, list) and all(map(_are_counts, value)),
    "others": lambda value: isinstance(value, list) and all(map(_are_counts, value)),
    "counted": _are_counts,
    "lengths": _are_counts,
    "written": _is_count,
    "reached": _are_counts,
    "states": lambda value: isinstance(value, list),
    "attached": lambda value: isinstance(value, dict),
    "adapters": lambda value: isinstance(value, list) and all(map(_is_adapter, value)),
}
