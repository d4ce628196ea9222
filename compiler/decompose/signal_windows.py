"""Windows of signals of fixed lengths as constants.

In: a call of `torch.hann_window` or of its like while it is traced. Out: its numbers,
computed by numpy; None, which leaves the call, where the length is a dynamic size.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _window(
    symmetric: Callable[..., Numbers],
    window_length: int | torch.SymInt,
    periodic: bool = True,
    *settings: float,
    dtype: torch.dtype | None = None,
    layout: object = None,
    device: object = None,
    pin_memory: object = None,
    requires_grad: object = None,
    **named: float,
) -> Tensor | None:
    """Return a window [window_length]; a periodic one lacks the last of one more."""
    kind = torch.get_default_dtype() if dtype is None else dtype
    fixed = isinstance(window_length, int) and window_length >= 0
    if not fixed or not kind.is_floating_point:
        return None
    longer = periodic and window_length > 1
    numbers = symmetric(window_length + longer, *settings, **named)
    return torch.from_numpy(numbers[:window_length].copy()).to(kind)


def _raised_cosine(length: int, alpha: float = 0.54, beta: float = 0.46) -> Numbers:
    if length == 1:
        return np.ones(1)
    angles = 2 * np.pi / max(length - 1, 1) * np.arange(length)
    made: Numbers = alpha - beta * np.cos(angles)
    return made


def _kaiser(length: int, beta: float = 12.0) -> Numbers:
    return np.kaiser(length, beta)


WINDOWS: Mapping[Callable[..., object], Callable[..., object]] = {
    torch.bartlett_window: partial(_window, np.bartlett),
    torch.blackman_window: partial(_window, np.blackman),
    torch.hamming_window: partial(_window, _raised_cosine),
    torch.hann_window: partial(_window, np.hanning),
    torch.kaiser_window: partial(_window, _kaiser),
}
