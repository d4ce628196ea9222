"""Lines of a file, each of which a command answers with a row.

In: a path, or "-" for stdin. Out: a text for each line, empty ones too, so that row n
is of line n. A line ends with a line feed, or with a carriage return and a line feed,
as on Windows; other characters that could end one belong to it. What follows the last
line feed is a line unless it is empty. A byte order mark at the beginning is no text.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvc.schema.errors import BadSetting, FileProblem, TextTooLong, reason_of

_MARK: Final = "\ufeff"


def read_lines(file: str) -> list[str]:
    """Return the lines of a file.

    Raises:
        FileProblem: it cannot be read, or is no text.
    """
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        text = raw.decode().removeprefix(_MARK)
    except UnicodeDecodeError as error:
        before = error.object[: error.start].count(b"\n")
        reason = f"line {before + 1}: it is no text of UTF-8"
        raise FileProblem(path=file, reason=reason) from error
    except (OSError, ValueError) as error:
        raise FileProblem(path=file, reason=reason_of(error)) from error
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


@contextmanager
def naming_lines(file: str | None, before: int) -> Iterator[None]:
    """Have errors of texts name the line of the file that they are of.

    Args:
        file: whose lines are texts; None for none.
        before: how many texts come before the first line.

    Raises:
        FileProblem: a line is no text for the model.
    """
    try:
        yield
    except TextTooLong as error:
        raise _of_line(error, error.number, file, before) from error
    except BadSetting as error:
        number = error.name.removeprefix("texts[").removesuffix("]")
        if number == error.name or not number.isdecimal():
            raise
        raise _of_line(error, int(number), file, before) from error


def _of_line(
    error: TextTooLong | BadSetting, number: int, file: str | None, before: int
) -> TextTooLong | BadSetting | FileProblem:
    """Return an error of a text, of a line if the text is one."""
    if file is None or number < before:
        return error
    said = str(error).removeprefix(f"texts[{number}]").lstrip(": ")
    return FileProblem(path=file, reason=f"line {number - before + 1}: {said}")
