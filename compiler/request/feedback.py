"""Report the progress of a compilation; each report also raises dropped interrupts."""

import sys
import warnings
from typing import Final

from kvc.schema.container import Progress
from kvc.schema.interrupts import check_interrupts


def reporting(progress: Progress | None) -> Progress:
    """Return a function that reports progress to `progress`, if that is not None.

    The function also raises an interrupt again whose exception was caught and dropped.
    """

    def report(stage: str, done: int, total: int, item: str = "") -> None:
        check_interrupts()
        if progress is not None:
            progress(stage, done, total, item)

    return report


# Warn with the line of the caller, not with a line of kvc.


_OURS: Final = ("kvc", "functools", "contextlib")


def warn_caller(warning: Warning) -> None:
    """Issue a warning at the line of the user's code that called kvc."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level + 1)
