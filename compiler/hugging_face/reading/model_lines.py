"""Where in a model's code something happens, for errors that name its line.

In: an error that the code raised, or the call that is running. Out: `module:line` of
the innermost line of the model's own code. What torch, Python, kvc and the parts that
all models of transformers share do is no model's own.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import torch
import transformers

import kvc.schema

_TRANSFORMERS: Final = str(Path(transformers.__file__).parent)
_MODELS: Final = str(Path(_TRANSFORMERS) / "models")
_OURS: Final = str(Path(__file__).parents[1])
_OTHERS: Final = (
    str(Path(torch.__file__).parent),
    _OURS,
    str(Path(kvc.schema.__file__).parent),
    sysconfig.get_path("stdlib"),
)
_INSTALLED: Final = ("site-packages", "dist-packages")
NOWHERE: Final = "its code"


def line_of(error: BaseException) -> str:
    """Return the line of a model's code at which it failed; "its code" if none."""
    return _innermost(_raised_in(error))


def running_line() -> str:
    """Return the line of a model's code that is running; "its code" if none is."""
    return _innermost(reversed([*_running()]))


def _raised_in(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _running() -> Iterator[tuple[FrameType, int]]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _innermost(frames: Iterator[tuple[FrameType, int]]) -> str:
    """Return the last of frames, outermost first, that is of a model.

    Where none is, it is the last of what models of transformers share.
    """
    found = shared = ""
    for frame, line in frames:
        file, place = frame.f_code.co_filename, f"{_module(frame)}:{line}"
        if _is_own(file):
            found = place
        elif file.startswith(_TRANSFORMERS):
            shared = place
    return found or shared or NOWHERE


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_own(file: str) -> bool:
    """Tell whether a file is of a model: of transformers' models, or a user's."""
    if file.startswith(_MODELS):
        return True
    if file.startswith((_TRANSFORMERS, "<")):
        return False
    installed = any(f"/{name}/" in file for name in _INSTALLED)
    return not installed and not file.startswith(_OTHERS)
