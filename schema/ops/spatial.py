"""Shape rules of operators over the last `rank` axes: pooling, resizing, sampling."""

from kvc.schema.dtypes import DType
from kvc.schema.ops.shapes import Rule, Shape, require, shape_of
from kvc.schema.ops.spec import Concrete
from kvc.schema.types import TensorType


def average_pool(
    rank: int,
    x: TensorType,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    *_: Concrete,
) -> Rule:
    """Average the elements of each window over the last `rank` axes.

    Settings such as `kernel` have one number per axis.
    """
    windows = (kernel, stride or kernel, padding, (1,) * rank)
    return ((x.dtype, _pooled(rank, x, windows, ceil_mode)),)


def max_pool(
    rank: int,
    x: TensorType,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
) -> Rule:
    """Take the maximum of each window, and the index of the maximum in its plane."""
    windows = (kernel, stride or kernel, padding, dilation)
    shape = _pooled(rank, x, windows, ceil_mode)
    return ((x.dtype, shape), (DType.INT64, shape))


def _pooled(
    rank: int, x: TensorType, windows: tuple[tuple[int, ...], ...], ceil_mode: bool
) -> Shape:
    """Return the shape of a pool's result; as in torch, no window begins in padding.

    `windows` has the sizes, strides, paddings and dilations of the windows, each with
    one number per axis.
    """
    shape = shape_of(x)
    require(len(shape) in (rank + 1, rank + 2), f"{x} for {rank} axes")
    require(all(len(each) == rank for each in windows), f"settings for {rank} axes")
    found = []
    for size, k, s, p, d in zip(shape[-rank:], *windows, strict=True):
        require(min(k, s, d) > 0 and 0 <= 2 * p <= k, "settings of pooling")
        require(max(k, s, d) < 1 << 31, "settings of pooling")  # as in torch
        steps = size + 2 * p - d * (k - 1) - 1
        count = (steps + (s - 1 if ceil_mode else 0)) // s + 1
        if ceil_mode and (count - 1) * s >= size + p:
            count -= 1
        require(count > 0, f"windows of {k} over {size}")
        found.append(count)
    return (*shape[:-rank], *found)


def adaptive_pool(rank: int, x: TensorType, size: tuple[int, ...]) -> Rule:
    """Average windows; the number of windows along each axis is in `size`."""
    return ((x.dtype, _resized(rank, x, size)),)


def adaptive_max_pool(rank: int, x: TensorType, size: tuple[int, ...]) -> Rule:
    """Take the maximum, and its index, of each window that `adaptive_pool` averages."""
    shape = _resized(rank, x, size)
    return ((x.dtype, shape), (DType.INT64, shape))


def _resized(rank: int, x: TensorType, size: tuple[int, ...]) -> Shape:
    shape, fits = shape_of(x), len(size) == rank
    require(fits and len(shape) in (rank + 1, rank + 2), f"{x} for {rank} axes")
    require(min(shape[-rank:]) > 0 and min(size) >= 0, f"{x} to {size}")
    return (*shape[:-rank], *size)


def resize(
    rank: int, x: TensorType, size: tuple[int, ...], *settings: Concrete
) -> Rule:
    """Resize the last axes of [batch, channels, ...] to `size`.

    Scale factors must agree with `size`.
    """
    require(
        len(x.dims) == len(size) + 2 == rank + 2 and min(size) > 0, f"{x} to {size}"
    )
    for whole, wanted, factor in zip(shape_of(x)[2:], size, settings[-2:], strict=True):
        fits = factor is None or (
            isinstance(factor, float)
            and 0 < factor < 2**31
            and int(whole * factor) == wanted
        )
        require(fits, f"{whole} to {wanted} by {factor}")
    return ((x.dtype, _resized(rank, x, size)),)


def grid_sample(
    rank: int, x: TensorType, grid: TensorType, mode: int, padding: int, _: Concrete
) -> Rule:
    """Sample x [batch, channels, ...] at the points of a grid [batch, ..., axes].

    The coordinates of points are from -1 to 1.
    """
    shape, places = shape_of(x), shape_of(grid)
    require(len(shape) == len(places) == rank + 2, f"{x} at {grid}")
    require(places[0] == shape[0] and places[-1] == rank, f"{x} at {grid}")
    require(0 <= mode <= (2 if rank == 2 else 1) and 0 <= padding <= 2, "settings")
    require(min(shape[2:]) > 0, f"nothing to sample of {x}")
    return ((x.dtype, (*shape[:2], *places[1:-1])),)
