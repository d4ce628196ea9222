"""Resolve the paths that callers give, with typed errors."""

import os
from collections.abc import Iterable
from pathlib import Path

from kvc.schema.errors import BadSetting, FileProblem, reason_of

Folder = str | os.PathLike[str]


def path_text(path: object, name: str = "path") -> str:
    """Return a path as text; `name` is what messages call it.

    Raises:
        BadSetting: it is none.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(text, str):
        return text
    expected, found = "a str or an os.PathLike", repr(text)
    if isinstance(text, bytes):
        expected += " (os.fsdecode makes text of a path in bytes; what a file holds is "
        expected += "no path, write it to a file first)"
        found = f"{len(text)} bytes"
    raise BadSetting(name=name, expected=expected, found=found)


def resolved(path: Folder, problem: type[FileProblem] = FileProblem) -> Path:
    """Return a path with links followed, whether there is such a file or not.

    Raises:
        FileProblem: links go in circles, or it has a NUL; or `problem` instead.
        BadSetting: it is no path.
    """
    text = path_text(path)
    try:
        return Path(text).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links
        raise problem(path=text, reason=reason_of(error)) from error


def several(paths: Folder | Iterable[Folder]) -> tuple[str, ...]:
    """Return paths as texts; a single one is not taken apart into letters.

    Raises:
        BadSetting: they are no paths.
    """
    if isinstance(paths, str | bytes | os.PathLike) or not isinstance(paths, Iterable):
        return (path_text(paths),)
    return tuple(map(path_text, paths))
