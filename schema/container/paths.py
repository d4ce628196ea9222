"""Paths as callers give them: made real, with errors that have a type."""

import os
from collections.abc import Iterable
from pathlib import Path

from kvc.schema.errors import FileProblem, KvcError, reason_of

Folder = str | os.PathLike[str]


def resolved(path: Folder, problem: type[KvcError] = FileProblem) -> Path:
    """Return a path with links followed, whether there is such a file or not.

    Raises:
        FileProblem: links go in circles, or it is no path at all; or `problem` instead.
    """
    text = os.fsdecode(path)
    try:
        return Path(text).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links
        raise problem(path=text, reason=reason_of(error)) from error


def several(paths: Folder | Iterable[Folder]) -> tuple[str, ...]:
    """Return paths as texts; a single one is not taken apart into letters."""
    if isinstance(paths, str | bytes | os.PathLike):
        return (os.fsdecode(paths),)
    return tuple(map(os.fsdecode, paths))
