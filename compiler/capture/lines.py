"""Make torch note the user's source line for every traced op.

torch keeps only frames of functions called `forward`, which loses the lines of all
other methods. While tracing, this keeps the frames of the user's code instead.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.fx.proxy import TracerBase

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)


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
    """Return the frames beneath capture's own last one; none outside of a capture."""
    ours = [i for i, frame in enumerate(stack) if frame.filename.startswith(_OURS)]
    beneath = stack[ours[-1] + 1 :] if ours else []
    own = [frame for frame in beneath if not frame.filename.startswith(_TORCH)]
    return traceback.StackSummary.from_list(own)
