"""Progress of a compilation, on stderr: one bar a stage on a terminal, else nothing.

The compiler calls `show(stage, done, total, item)` as often as it likes; a total of 0
means that nobody knows how long the stage takes. Beside the bar stand what is worked
on, the time so far, and where a stage has steps the time that it still needs.
"""

from types import TracebackType

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

from kvc.tools.text import escape

_MOST_ITEM = 32


class Stages:
    """The stages so far; a new stage's name ends the one before it."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description:<26}"),
            BarColumn(24, complete_style="cyan", finished_style="green"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[item]}", markup=False),
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
        """Say that `done` of `total` of a stage is done, and `item` worked on."""
        if stage != self._stage:
            self._finish()
            self._stage = stage
            self._task = self._progress.add_task(stage, total=None, item="")
        assert self._task is not None
        self._progress.update(
            self._task, completed=done, total=total or None, item=_shortened(item)
        )

    def _finish(self) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=1, total=1, item="")


def _shortened(item: str) -> str:
    """Return the end of a name, which tells more of it than the beginning."""
    name = escape(item)
    return name if len(name) <= _MOST_ITEM else f"…{name[1 - _MOST_ITEM :]}"
