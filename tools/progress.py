"""Progress of a compilation, on stderr: one bar a stage on a terminal, else nothing.

The compiler calls `show(stage, done, total)` as often as it likes; a total of 0 means
that nobody knows how long the stage takes.
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
)


class Stages:
    """The stages so far; a new stage's name ends the one before it."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description:<26}"),
            BarColumn(24, complete_style="cyan", finished_style="green"),
            TextColumn("{task.fields[count]:>11}"),
            TimeElapsedColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._stage: str | None = None
        self._total = 0
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

    def show(self, stage: str, done: int, total: int) -> None:
        """Say that `done` of `total` steps of a stage are done."""
        if stage != self._stage:
            self._finish()
            self._stage = stage
            self._task = self._progress.add_task(stage, total=None, count="")
        assert self._task is not None
        self._total = total
        count = f"{done}/{total}" if total > 1 else ""
        self._progress.update(
            self._task, completed=done, total=total or None, count=count
        )

    def _finish(self) -> None:
        if self._task is not None:
            count = f"{self._total}/{self._total}" if self._total > 1 else ""
            self._progress.update(self._task, completed=1, total=1, count=count)
