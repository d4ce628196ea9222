"""Show a command's progress on stderr: a bar for each stage on a terminal, else lines.

The compiler calls `show(stage, done, total, item)` as often as it likes; a total of 0
means that the length of the stage is unknown. A bar shows the current item, the time so
far, and, if the stage has steps, the remaining time. If stderr is no terminal, each
stage is a line with the time since the start, and so is the current item every few
seconds.
"""

import sys
import time
from types import TracebackType
from typing import Final

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kvc.schema.text import escape

_TEXT_WIDTH: Final = 46  # so that all fits into 80 columns
_BETWEEN_LINES: Final = 2.0  # seconds


class Stages:
    """The progress of a command; a stage ends when the next stage's name is shown."""

    def __init__(self, *, quiet: bool) -> None:
        # This very file: tracing puts another one in the place of sys.stderr.
        console = Console(file=sys.stderr, highlight=False)
        self._has_lines = not quiet and not console.is_terminal
        self._began = self._last_line = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn(f"{{task.description:<{_TEXT_WIDTH}}}", markup=False),
            BarColumn(12, complete_style="cyan", finished_style="green"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._stage: str | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "Stages":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()
        self._progress.stop()

    def show(self, stage: str, done: int, total: int, item: str = "") -> None:
        """Show that `done` of `total` steps of a stage are done, and the item."""
        is_new = stage != self._stage
        if is_new:
            self._finish()
            self._stage = stage
            self._task = self._progress.add_task(escape(stage), total=None)
        assert self._task is not None
        self._progress.update(
            self._task,
            completed=done,
            total=total or None,
            description=_described(stage, item),
        )
        if self._has_lines:
            now = time.monotonic()
            if is_new or now - self._last_line >= _BETWEEN_LINES:
                self._last_line = now
                text = f"{stage}: {item}" if item else stage
                click.echo(f"[{now - self._began:6.1f} s] {escape(text)}", err=True)

    def _finish(self) -> None:
        if self._task is not None:
            name = escape(str(self._stage))
            self._progress.update(self._task, completed=1, total=1, description=name)


def _described(stage: str, item: str) -> str:
    """Return a stage and its item; of a long item only the end, which tells more."""
    name, width = escape(item), _TEXT_WIDTH - len(stage) - 2
    shown = name if len(name) <= width else f"…{name[1 - width :]}"
    return f"{escape(stage)}  {shown}".rstrip()
