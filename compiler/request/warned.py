"""Warn whoever called kvc, and not a line of kvc's own."""

import sys
import warnings
from typing import Final

_OURS: Final = ("kvc", "functools", "contextlib")


def warn_caller(warning: Warning) -> None:
    """Give a warning, with the line that called kvc."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level + 1)
