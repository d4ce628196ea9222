"""Make torch note the user's source line for every traced op.

torch keeps only frames of functions called `forward`, which loses the lines of all
other methods. While tracing, this keeps the frames of the user's code instead.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from torch.fx.proxy import TracerBase

from kvc.compiler.decompose.claims import TRACERS

CALLER = str(Path(__file__).with_name("shadow.py"))  # calls the user's code


@contextmanager
def lines_kept() -> Iterator[None]:
    """Let tracers note all frames of the traced method, torch's own left out."""
    before = TracerBase._filter_traceback_frames
    TracerBase._filter_traceback_frames = (  # type: ignore[method-assign]
        _user_frames  # type: ignore[assignment]
    )
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = before  # type: ignore[method-assign]


def _user_frames(
    _: TracerBase, stack: traceback.StackSummary
) -> traceback.StackSummary:
    """Return the frames of the user's code; none outside of a capture."""
    calls = [i for i, frame in enumerate(stack) if frame.filename == CALLER]
    beneath = stack[calls[-1] + 1 :] if calls else []
    own = [f for f in beneath if not f.filename.startswith(TRACERS)]
    return traceback.StackSummary.from_list(own)


def user_place(frame: FrameType | None) -> str:
    """Return ` at module:line` of the innermost frame of the user's code, or ""."""
    while frame is not None and frame.f_code.co_filename != CALLER:
        if not frame.f_code.co_filename.startswith(TRACERS):
            return f" at {frame.f_globals.get('__name__', '')}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
