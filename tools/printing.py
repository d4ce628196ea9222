"""How commands print: tables, JSON, errors that end them.

Tables are printed unchanged into a file or pipe, and fitted to the width and coloured
on a terminal. The variable COLUMNS overrides the width, as in other programs. Colours
follow https://no-color.org. JSON has no NaN and no infinity: both become null. The JSON
of each command has a version, see reports/JSON.md.

Commands that answer a question exit as grep and diff do: 0 for the good answer, 1 for
the bad answer (different, damaged, not all removed), and 2 if there is no answer
because a file could not be read or run. click exits with 2 for wrong options, too. All
other commands exit with 1 if they fail.
"""

import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NoReturn

import click

from kvc.schema.errors import KvcError
from kvc.schema.text import escape

_HANGING: Final = 8
_NARROWEST: Final = 40  # below it lines are left to the terminal
# What stands after two spaces, up to two others or the end, and is no sentence.
_CELL: Final = re.compile(r"(?<=  )\S(?:\S| (?=\S)){0,23}(?=  |$)")
_GLUE: Final = "\0"  # no text that is printed has it
# Command -> version of what it prints. A field that goes, or comes to mean something
# else, raises it; a new one does not.
VERSIONS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "dump": 3,
        "diff": 1,
        "generate": 1,
        "eval": 1,
        "bench": 1,
        "profile": 1,
        "verify": 2,
        "check": 2,
        "gc": 1,
        "recipes": 1,
        "devices": 1,
    }
)
BAD: Final = 1
TROUBLE: Final = 2


def show(lines: Sequence[str]) -> None:
    """Print lines on stdout."""
    terminal = sys.stdout.isatty()
    asked = os.environ.get("COLUMNS", "")  # nothing is asked of files and pipes else
    width = int(asked) if asked.isdecimal() else 0
    if terminal:
        width = shutil.get_terminal_size().columns
    if width:
        colour = terminal and not os.environ.get("NO_COLOR")
        lines = list(fitted(lines, width, colour))
    click.echo("\n".join(lines))


def fitted(lines: Sequence[str], width: int, colour: bool) -> Iterator[str]:
    """Yield lines of at most `width` columns; a long line continues, indented, below.

    Lines break at spaces, but not within short cells of a table such as `1.57 MB`. With
    `colour`, titles are bold, and the word COPY is yellow.
    """
    for line in lines:
        parts = [line]
        if len(line) > width >= _NARROWEST:
            indent = min(len(line) - len(line.lstrip()) + _HANGING, width // 2)
            wrapped = textwrap.wrap(
                _CELL.sub(lambda cell: cell[0].replace(" ", _GLUE), line),
                width,
                subsequent_indent=" " * indent,
                break_on_hyphens=False,
                replace_whitespace=False,
                drop_whitespace=True,
            )
            parts = [part.replace(_GLUE, " ") for part in wrapped]
        yield from (_coloured(part, line) if colour else part for part in parts)


def _coloured(part: str, line: str) -> str:
    if line[:1].strip():  # a title begins at the edge
        return click.style(part, bold=True)
    return part.replace(" COPY ", f" {click.style('COPY', fg='yellow')} ")


def json_text(
    value: object, *, indent: int | None = None, ensure_ascii: bool = True
) -> str:
    """Return JSON of dicts, lists, texts and numbers; NaN and infinity become null.

    `json.dumps` would write `NaN`, which other readers of JSON refuse.
    """
    return json.dumps(
        _with_nulls(value), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False
    )


def report_text(command: str, fields: Mapping[str, object]) -> str:
    """Return the `--json` output of a command: the output's version and the fields."""
    return json_text({"version": VERSIONS[command], **fields}, indent=2)


def _with_nulls(value: object) -> object:
    match value:
        case dict():
            return {key: _with_nulls(one) for key, one in value.items()}
        case list() | tuple():
            return [_with_nulls(one) for one in value]
        case float() if not math.isfinite(value):
            return None
    return value


def tell(error: KvcError) -> None:
    """Print an error in the way of a failing command, but do not exit."""
    click.ClickException(escape(str(error), keep="\n")).show()


def end_in_trouble(error: KvcError) -> NoReturn:
    """Print an error, and exit with 2, which means that there is no answer.

    Raises:
        Exit: always.
    """
    tell(error)
    raise click.exceptions.Exit(TROUBLE) from error
