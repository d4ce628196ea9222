"""Print tables: as they are into a file or pipe, fitted and coloured on a terminal.

The variable COLUMNS gives the width in any case, as it does for other programs. Colours
follow https://no-color.org.
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

import click

_HANGING: Final = 8
_NARROWEST: Final = 40  # below it lines are left to the terminal
# What stands after two spaces, up to two others or the end, and is no sentence.
_CELL: Final = re.compile(r"(?<=  )\S(?:\S| (?=\S)){0,23}(?=  |$)")
_GLUE: Final = "\0"  # no text that is printed has it


def show(lines: Sequence[str]) -> None:
    """Print lines on stdout."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else _asked_width()
    if width:
        colour = terminal and not os.environ.get("NO_COLOR")
        lines = list(fitted(lines, width, colour))
    click.echo("\n".join(lines))


def _asked_width() -> int:
    """Return the width that the environment asks for, 0 where it asks for none."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() else 0


def fitted(lines: Sequence[str], width: int, colour: bool) -> Iterator[str]:
    """Yield lines of at most so many columns: long ones go on further in, at a space.

    Short cells of a table, as `1.57 MB`, stay whole. Titles are bold, and the word
    COPY is yellow.
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
