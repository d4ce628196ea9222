"""How `kvc batch` tells on stderr how far it is: rows, tokens a second, time left."""

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from kvc.schema.text import plural

if TYPE_CHECKING:
    from kvc.serving.batch import Progress

_ON_TERMINAL: Final = 0.2  # seconds between two lines
_FIRST_LINE, _MOST_BETWEEN = 5.0, 60.0
_RISE: Final = 1.5


class ProgressLine:
    """A line that changes on a terminal; else lines, ever more seldom."""

    def __init__(self, total: int | None, quiet: bool) -> None:
        """Begin; nothing is told yet.

        Args:
            total: how many rows there are, None if it is unknown.
            quiet: whether to tell nothing.
        """
        self._total, self._quiet = total, quiet
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._between = _ON_TERMINAL if self._is_terminal else _FIRST_LINE
        self._last = time.monotonic()
        self._width = 0

    def show(self, progress: "Progress") -> None:
        """Tell how far the batch is, if it is time."""
        now = time.monotonic()
        if self._quiet or now - self._last < self._between:
            return
        self._last = now
        text = self._text(progress)
        if not self._is_terminal:
            self._between = min(self._between * _RISE, _MOST_BETWEEN)
            click.echo(text, err=True)
            return
        click.echo("\r" + text.ljust(self._width), nl=False, err=True)
        self._width = len(text)

    def end(self, progress: "Progress") -> None:
        """Tell what has been done."""
        if self._quiet:
            return
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)
        rows = plural(progress.done, "row")
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        speed = f"{_speed(progress):.1f} tokens/s"
        seconds = _clock(progress.seconds)
        made = plural(progress.tokens, "token")
        click.echo(f"{rows}{failed}; {made} in {seconds}, {speed}", err=True)

    def _text(self, progress: "Progress") -> str:
        parts = [f"{progress.done:,}"]
        if self._total is not None:
            parts[0] += f" of {self._total:,}"
        parts[0] += " rows"
        if progress.failed:
            parts.append(f"{progress.failed:,} failed")
        parts.append(f"{_speed(progress):.1f} tokens/s")
        if self._total is not None and progress.new:
            left = self._total - progress.done
            parts.append(f"{_clock(progress.seconds / progress.new * left)} left")
        return ", ".join(parts)


def _speed(progress: "Progress") -> float:
    return progress.tokens / progress.seconds if progress.seconds else 0.0


def _clock(seconds: float) -> str:
    """Return a time as 7 s, 3:07 or 2:03:07."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
