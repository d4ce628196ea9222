"""Rules on the arguments of norms over channels, pools and resizing, for XNNPACK.

XNNPACK's own pooling loses NaN, so kvc does not use it. If the windows of a pool
neither overlap nor contain padding, a reshape makes an axis of each window's elements,
and that axis is reduced. All other pools are computed from slices.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from kvc.schema.backends.operands import Arguments, Results, operand
from kvc.schema.frozen import frozen
from kvc.schema.types import Dim, TensorType

_MOST_SLICES: Final = 32  # along an axis, of a pool with overlapping windows
# Operators whose second result holds indices, which nothing may read.
INDEXED: Final = ("aten::max_pool2d_with_indices", "aten::adaptive_max_pool2d")


@frozen
class Line:
    """The windows of a pool along one axis.

    Attributes:
        size: the number of elements of the axis.
        count: the number of windows.
        kernel: the number of elements of a window.
        step: the stride between windows; 1 if there is one window.
        apart: the dilation: the distance between neighboring elements of a window.
        before: the number of padding elements at either end of the axis.
    """

    size: int
    count: int
    kernel: int
    step: int
    apart: int
    before: int

    @property
    def places(self) -> tuple[int, ...]:
        """Return the offsets of a window's elements from the start of the window."""
        return tuple(i * self.apart for i in range(self.kernel))

    def counts(self, around: bool) -> tuple[int, ...]:
        """Return the number of elements of each window.

        Args:
            around: whether elements of the padding count.
        """
        first, end = (-self.before, self.size + self.before)
        least, most = (first, end) if around else (0, self.size)
        starts = (first + i * self.step for i in range(self.count))
        ends = ((start, min(start + self.kernel, end)) for start in starts)
        return tuple(min(stop, most) - max(start, least) for start, stop in ends)


def lines_of(
    given: tuple[Dim, ...],
    made: tuple[Dim, ...],
    kernel: tuple[int, ...],
    stride: Sequence[int],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[Line, ...]:
    """Return the windows of a pool: those along the height, then along the width.

    Args:
        given: dims of the input; the last two are height and width.
        made: dims of the result.
        kernel: height and width of a window.
        stride: the strides; empty for strides of the size of a window.
        padding: the numbers of padding elements at either end of height and width.
        dilation: the dilations.
    """
    steps = tuple(stride) or kernel
    each = (given[-2:], made[-2:], kernel, steps, dilation, padding)
    return tuple(
        Line(size, count, high, step if count > 1 else 1, apart, before)
        for size, count, high, step, apart, before in zip(*each, strict=True)
    )


def side_by_side(lines: Iterable[Line]) -> bool:
    """Tell whether windows are adjacent: no overlap, no gap, no padding."""
    return all(
        line.before == 0
        and (line.apart == 1 or line.kernel == 1)
        and (line.step == line.kernel or line.count == 1)
        and line.kernel * line.count <= line.size
        for line in lines
    )


def pool(arguments: Arguments, results: Results) -> str:
    """Return why a pool is not supported, or "".

    Height and width must be fixed. A side of an overlapping window is limited.
    """
    x, kernel, stride, padding, *rest = arguments
    given, made = operand(x).type, results[0]
    dilation = rest[0] if isinstance(rest[0], tuple) else (1, 1)
    if not _whole(given.dims[-2:]) or not _whole(made.dims[-2:]):
        return f"a pool of {given}"
    lines = lines_of(given.dims, made.dims, kernel, stride, padding, dilation)  # type: ignore[arg-type]  # as the op has them
    if not side_by_side(lines) and any(line.kernel > _MOST_SLICES for line in lines):
        return f"pooling windows {kernel} at steps {stride}"
    return _reason_of_rank(given)


def adaptive_pool(arguments: Arguments, results: Results) -> str:
    """Return why an adaptive pool is not supported, or "".

    The windows must have equal, fixed sizes, and cover height and width exactly.
    """
    x = operand(arguments[0]).type
    sizes, counts = x.dims[-2:], results[0].dims[-2:]
    if not _whole(sizes) or not _whole(counts):
        return f"a pool of {x}"
    if any(n == 0 or size % n for size, n in zip(sizes, counts, strict=True)):  # type: ignore[operator]  # they are whole
        return f"a pool of {x} to {counts}"
    return _reason_of_rank(x)


def _reason_of_rank(x: TensorType) -> str:
    return "" if len(x.dims) in (3, 4) else f"a pool of {x}"


def nearest(arguments: Arguments, results: Results) -> str:
    """Return why resizing to the nearest element is not supported, or "".

    Each new size must be a whole multiple of the old size.
    """
    x = operand(arguments[0]).type
    if reason := _resize(x, results[0], arguments[-2:]):
        return reason
    lines = zip(x.dims[2:], results[0].dims[2:], strict=True)
    uneven = any(wanted % size for size, wanted in lines)  # type: ignore[operator]  # they are whole
    return f"{x} to {results[0]}" if uneven else ""


def bilinear(arguments: Arguments, results: Results) -> str:
    """Return why bilinear resizing is not supported, or "".

    A scale factor, if given, must be the new size divided by the old size.
    """
    return _resize(operand(arguments[0]).type, results[0], arguments[-2:])


def _resize(x: TensorType, made: TensorType, factors: Arguments) -> str:
    if not _whole(x.dims[2:]) or not _whole(made.dims[2:]):
        return f"{x} to {made}"
    for size, wanted, factor in zip(x.dims[2:], made.dims[2:], factors, strict=True):
        if factor is not None and size * factor != wanted:  # type: ignore[operator]  # they are whole
            return f"{size} to {wanted} by {factor}"
    return ""


def group_norm(arguments: Arguments, results: Results) -> str:
    """Return why a group norm is not supported, or "".

    All sizes except the batch size must be fixed.
    """
    x = operand(arguments[0]).type
    return "" if _whole(x.dims[1:]) else f"normalising groups of {x}"


def variance(arguments: Arguments, results: Results) -> str:
    """Return why a variance is not supported, or "".

    The reduced axes must have fixed sizes, and the divisor must be positive.
    """
    x, axes, correction, _ = arguments
    dims = operand(x).type.dims
    assert axes is None or isinstance(axes, tuple)
    reduced = [dims[axis] for axis in axes] if axes and dims else [*dims]
    if not dims or not _whole(reduced):
        return f"the variance of {operand(x).type}"
    count = math.prod(size for size in reduced if isinstance(size, int))
    less = 1 if correction is None else correction
    fits = isinstance(less, int | float) and 0 <= less < count
    return "" if fits else f"the variance of {count} elements less {less}"


def vector_norm(arguments: Arguments, results: Results) -> str:
    """Return why a vector norm is not supported, or ""; only the norm of order 2 is."""
    x, order, *_ = arguments
    if not operand(x).type.dims:
        return "a reduction of a scalar"
    return "" if order == 2 else f"a norm of order {order}"


def _whole(dims: "tuple[Dim, ...] | list[Dim]") -> bool:
    return all(isinstance(size, int) for size in dims)
