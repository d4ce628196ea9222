"""Fourier transforms of fixed lengths as matrix products.

In: a call of `torch.fft`, `torch.stft` or `torch.istft` while it is traced. Out: the
same numbers, computed as a matrix product with cosines and sines. If the length is
dynamic or more than `MOST_LENGTH`, the result is None, which keeps the call. Complex
numbers are decomposed later (`complex_numbers`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kvc.compiler.decompose.fourier_orders import laid_out

MOST_LENGTH: Final = 2048  # its matrices take 17 MB
# The least sum of squares to divide samples by; torch refuses less, with this message.
_LEAST: Final = 1e-11
# Smaller entries are rounding errors: the least sine at `MOST_LENGTH` is 1e-5.
_NO_PART: Final = 1e-12
_ZERO: Final = "window overlap add min: 0"
_OTHER_NORM: Final = {None: "forward", "backward": "forward", "forward": "backward"}
Parts = tuple[Tensor, Tensor | None]  # real and imaginary; None is 0


def _fft(
    x: Tensor,
    n: int | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    inverse: bool = False,
    onesided: bool = False,
    out: object = None,
) -> Tensor | None:
    """Transform along one axis.

    If `onesided`, the result is the first half of the transform of a real input.
    """
    length = _length(x, n, dim)
    if length is None or out is not None or (onesided and x.is_complex()):
        return None
    real, imaginary = _lines(x, length, dim)
    cosines, sines = _matrices(length, norm, inverse)
    if onesided:
        cosines, sines = (m[:, : length // 2 + 1] for m in (cosines, sines))
    c, s = (_constant(m, real.dtype) for m in (cosines, sines))
    if imaginary is None:
        made = torch.complex(real @ c, -(real @ s))
    else:
        made = torch.complex(real @ c + imaginary @ s, imaginary @ c - real @ s)
    return made.movedim(-1, dim)


def _irfft(
    x: Tensor,
    n: int | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    out: object = None,
) -> Tensor | None:
    """Return the real signal [n] of whose transform `x` is the first half.

    The other half of such a transform has the conjugate values in reverse order.
    """
    half = _length(x, None if n is None else n // 2 + 1, dim)
    if half is None or out is not None:
        return None
    length = 2 * (half - 1) if n is None else n
    if not 0 < length <= MOST_LENGTH:
        return None
    real, imaginary = _lines(x, half, dim)
    times = np.full((half, 1), 2.0)
    times[0] = 1
    if length % 2 == 0:
        times[-1] = 1
    cosines, sines = (m[:half] * times for m in _matrices(length, norm, inverse=True))
    made = real @ _constant(cosines, real.dtype)
    if imaginary is not None:
        made = made + imaginary @ _constant(sines, real.dtype)
    return made.movedim(-1, dim)


def _hfft(
    x: Tensor,
    n: int | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    out: object = None,
) -> Tensor | None:
    """Return the transform of a Hermitian signal; `x` is the signal's first half.

    The transform is real.
    """
    other = _OTHER_NORM.get(norm, norm)
    return _irfft(torch.conj(x), n, dim, other, out=out)


def _ihfft(
    x: Tensor,
    n: int | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    out: object = None,
) -> Tensor | None:
    """Return the first half of a Hermitian signal, of which `_hfft` would make x."""
    made = _rfft(x, n, dim, _OTHER_NORM.get(norm, norm), out=out)
    return None if made is None else torch.conj(made)


def _length(x: Tensor, n: int | None, dim: int) -> int | None:
    """Return the length of a transform; None if it is dynamic or over the limit."""
    if not x.dim() or not -x.dim() <= dim < x.dim():
        return None
    length: object = x.shape[dim] if n is None else n
    fits = isinstance(length, int) and isinstance(x.shape[dim], int)
    return length if fits and 0 < length <= MOST_LENGTH else None  # type: ignore[operator, return-value]  # it is an int


def _lines(x: Tensor, length: int, dim: int) -> Parts:
    """Return the real and the imaginary part of x, with axis `dim` moved to the end.

    This axis is cut or padded with zeros to `length`.
    """
    if x.is_complex():
        return _line(x.real, length, dim), _line(x.imag, length, dim)
    real = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    return _line(real, length, dim), None


def _line(part: Tensor, length: int, dim: int) -> Tensor:
    part = part.movedim(dim, -1)
    there = part.shape[-1]
    if there > length:
        return part[..., :length]
    return functional.pad(part, (0, length - there)) if there < length else part


def _matrices(
    length: int, norm: str | None, inverse: bool
) -> "tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], ...]":
    """Return two scaled matrices [length, length]: cosines, and sines.

    A transform is x @ cosines - i x @ sines; the inverse transform has sines of the
    opposite sign. Angles are computed from integers modulo the length.
    """
    counts = np.arange(length)
    angles = (2 * math.pi / length) * (counts[:, None] * counts[None, :] % length)
    whole = {"forward": not inverse, "ortho": True}.get(norm or "backward", inverse)
    root = 0.5 if norm == "ortho" else 1
    scale = length**-root if whole else 1.0
    sign = -1 if inverse else 1
    parts = scale * np.cos(angles), sign * scale * np.sin(angles)
    # cos(pi / 2) is not quite 0 in float64; beside values of 2^63 the error would
    # count.
    return tuple(np.where(np.abs(part) < _NO_PART, 0, part) for part in parts)


def _constant(
    matrix: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]", dtype: torch.dtype
) -> Tensor:
    kind = np.float64 if dtype is torch.float64 else np.float32
    return torch.from_numpy(np.ascontiguousarray(matrix, kind)).to(dtype)


def _several(
    first: Callable[..., Tensor | None],
    others: Callable[..., Tensor | None],
    last_first: bool,
    axes: Sequence[int] | None,
    x: Tensor,
    s: int | Sequence[int] | None = None,
    dim: int | Sequence[int] | None = None,
    norm: str | None = None,
    *,
    out: object = None,
) -> Tensor | None:
    """Transform along several axes, one after the other.

    Args:
        first: the transform of the last axis.
        others: the transform of all other axes.
        last_first: whether the last axis is transformed before the other axes.
        axes: the axes if neither `dim` nor `s` gives them; None for all axes.
        x: the tensor to transform.
        s: the lengths of the axes, to which x is cut or padded.
        dim: the axes to transform.
        norm: as in torch.
        out: refused.
    """
    s, dim = ((each,) if isinstance(each, int) else each for each in (s, dim))
    chosen = axes if dim is None else dim
    if chosen is None:
        chosen = range(-len(s), 0) if s is not None else range(-x.dim(), 0)
    lengths = [None if n == -1 else n for n in s] if s else [None] * len(chosen)
    if out is not None or not chosen or len(lengths) != len(chosen):
        return None
    transforms = [others] * (len(chosen) - 1) + [first]
    steps = list(zip(transforms, lengths, chosen, strict=True))
    found: Tensor | None = x
    for transform, length, axis in [steps[-1], *steps[:-1]] if last_first else steps:
        found = None if found is None else transform(found, length, axis, norm)
    return found


def _stft(
    x: Tensor,
    n_fft: int | torch.SymInt,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor | None:
    """Compute the STFT of x [samples] or [batch, samples].

    The result is [..., bins, windows].
    """
    if not isinstance(n_fft, int) or not 0 < n_fft <= MOST_LENGTH:
        return None
    usual = x.is_floating_point() and x.dim() in (1, 2) and not align_to_window
    width = n_fft if win_length is None else win_length
    hop = n_fft // 4 if hop_length is None else hop_length
    if not (usual and _fits(window, width) and return_complex is not None):
        return None
    if hop <= 0 or not 0 < width <= n_fft:
        return None
    lines = x if x.dim() == 2 else x.unsqueeze(0)
    if center:
        around = (n_fft // 2, n_fft // 2)
        lines = functional.pad(lines.unsqueeze(0), around, pad_mode).squeeze(0)
    frames = lines.unfold(-1, n_fft, hop)
    if window is not None or width < n_fft:
        frames = frames * _window(window, width, n_fft, x.dtype)
    made = _fft(
        frames,
        norm="ortho" if normalized else None,
        onesided=onesided is not False,
    )
    assert made is not None, "a length that fits"
    made = made.transpose(-1, -2)
    made = made if x.dim() == 2 else made.squeeze(0)
    return made if return_complex else torch.view_as_real(made)


def _fits(window: Tensor | None, width: int) -> bool:
    """Tell whether a window is real and has the required width."""
    if window is None:
        return True
    return not window.is_complex() and tuple(window.shape) == (width,)


def _window(
    window: Tensor | None, width: int, length: int, dtype: torch.dtype
) -> Tensor:
    """Return the window in the middle of zeros [length]; None: a window of ones."""
    shape = torch.ones(width, dtype=dtype) if window is None else window
    left = (length - width) // 2
    return functional.pad(shape, (left, length - width - left))


def _istft(
    x: Tensor,
    n_fft: int | torch.SymInt,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | torch.SymInt | None = None,
    return_complex: bool = False,
) -> Tensor | None:
    """Return the samples whose STFT is x [..., bins, windows]."""
    if not isinstance(n_fft, int) or not 0 < n_fft <= MOST_LENGTH:
        return None
    half = n_fft // 2 + 1
    whole = x.shape[-2] == n_fft if onesided is None else not onesided
    width = n_fft if win_length is None else win_length
    hop = n_fft // 4 if hop_length is None else hop_length
    usual = x.is_complex() and x.dim() in (2, 3) and not return_complex
    bins = n_fft if whole else half
    if not (usual and _fits(window, width) and x.shape[-2] == bins):
        return None
    if not 0 < hop <= width <= n_fft:
        return None
    lines = _irfft(
        x.transpose(-1, -2)[..., :half], n_fft, norm="ortho" if normalized else None
    )
    assert lines is not None, "a length that fits"
    lines = lines if x.dim() == 3 else lines.unsqueeze(0)
    shape = _window(window, width, n_fft, lines.dtype)
    squares = (shape * shape).expand(1, *lines.shape[1:])
    begin = n_fft // 2 if center else 0
    made = _added_up(lines * shape, hop, begin, length)
    sums = _added_up(squares, hop, begin, length)
    torch._assert_async((sums.amin() < _LEAST).logical_not(), _ZERO)
    made = made / sums
    missing = 0 if length is None else length - made.shape[-1]
    if missing > 0:
        made = functional.pad(made, (0, missing))  # type: ignore[arg-type]  # torch takes both
    return made if x.dim() == 3 else made.squeeze(0)


def _added_up(
    lines: Tensor, hop: int, begin: int, length: int | torch.SymInt | None
) -> Tensor:
    """Add up windows [batch, windows, samples] that start `hop` samples apart.

    The first `begin` samples are cut off. If `length` is None, the last `begin` samples
    are cut off too; otherwise `length` samples are returned.
    """
    _, count, width = lines.shape
    total = (count - 1) * hop + width
    made = functional.fold(
        lines.transpose(1, 2), (1, total), (1, width), stride=(1, hop)
    )
    end = total - begin if length is None else begin + length
    return made[:, 0, 0, begin:end]


_rfft = partial(_fft, onesided=True)
_ifft = partial(_fft, inverse=True)
_PLANE = (-2, -1)
_TRANSFORMS: Mapping[Callable[..., Tensor], Callable[..., Tensor | None]] = {
    torch.fft.fft: _fft,
    torch.fft.ifft: _ifft,
    torch.fft.rfft: _rfft,
    torch.fft.irfft: _irfft,
    torch.fft.hfft: _hfft,
    torch.fft.ihfft: _ihfft,
    torch.fft.hfft2: partial(_several, _hfft, _fft, False, _PLANE),
    torch.fft.ihfft2: partial(_several, _ihfft, _ifft, True, _PLANE),
    torch.fft.hfftn: partial(_several, _hfft, _fft, False, None),
    torch.fft.ihfftn: partial(_several, _ihfft, _ifft, True, None),
    torch.fft.fft2: partial(_several, _fft, _fft, False, _PLANE),
    torch.fft.ifft2: partial(_several, _ifft, _ifft, False, _PLANE),
    torch.fft.rfft2: partial(_several, _rfft, _fft, True, _PLANE),
    torch.fft.irfft2: partial(_several, _irfft, _ifft, False, _PLANE),
    torch.fft.fftn: partial(_several, _fft, _fft, False, None),
    torch.fft.ifftn: partial(_several, _ifft, _ifft, False, None),
    torch.fft.rfftn: partial(_several, _rfft, _fft, True, None),
    torch.fft.irfftn: partial(_several, _irfft, _ifft, False, None),
}


def _as_torch_lays_out(
    func: Callable[..., Tensor], words: Callable[..., Tensor | None]
) -> Callable[..., Tensor | None]:
    """Return a transform whose result has axes in torch's order in memory.

    `words` computes the transform that `func` computes in torch.
    """

    def made(x: Tensor, *args: object, **kwargs: object) -> Tensor | None:
        found = words(x, *args, **kwargs)
        return None if found is None else laid_out(found, func, (x, *args), kwargs)

    return made


FOURIER: Mapping[Callable[..., object], Callable[..., object]] = {
    **{func: _as_torch_lays_out(func, each) for func, each in _TRANSFORMS.items()},
    torch.stft: _stft,
    Tensor.stft: _stft,
    torch.istft: _istft,
    Tensor.istft: _istft,
}
