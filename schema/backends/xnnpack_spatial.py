"""What XNNPACK supports of norms over channels, pools, resizing: rules on arguments.

The library's own pooling loses NaN, so windows that neither overlap nor reach into
padding are reduced as axes, and others are left to other kernels.
"""

import math
from typing import Final

from kvc.schema.backends.operands import Arguments, Results, operand
from kvc.schema.types import Dim, TensorType

# Ops whose second result is of integers, which nothing may read.
INDEXED: Final = ("aten::max_pool2d_with_indices", "aten::adaptive_max_pool2d")


def pool(arguments: Arguments, results: Results) -> str:
    """Reduce windows that lie side by side."""
    x, kernel, stride, padding, *rest = arguments
    given = operand(x).type
    dilation = rest[0] if isinstance(rest[0], tuple) else (1, 1)
    assert isinstance(kernel, tuple)
    assert isinstance(padding, tuple)
    spread = any(d != 1 and k != 1 for d, k in zip(dilation, kernel, strict=True))
    divisor = rest[2] if len(rest) > 2 else None
    if any(step != 0 for step in padding) or spread or divisor is not None:
        return "a pool with padding, dilation or a divisor"
    if not _whole(given.dims[-2:]) or not _whole(results[0].dims[-2:]):
        return f"a pool of {given}"
    apart = tuple(stride) if isinstance(stride, tuple) and stride else kernel
    lines = zip(given.dims[-2:], results[0].dims[-2:], kernel, apart, strict=True)
    if any((step != k and n != 1) or k * n > size for size, n, k, step in lines):
        return f"pooling windows {kernel} at steps {apart}"
    return _reason_of_rank(given)


def adaptive_pool(arguments: Arguments, results: Results) -> str:
    """Reduce windows of one size that cover a plane."""
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
    """Repeat elements a whole number of times."""
    x = operand(arguments[0]).type
    if reason := _resize(x, results[0], arguments[-2:]):
        return reason
    lines = zip(x.dims[2:], results[0].dims[2:], strict=True)
    uneven = any(wanted % size for size, wanted in lines)  # type: ignore[operator]  # they are whole
    return f"{x} to {results[0]}" if uneven else ""


def bilinear(arguments: Arguments, results: Results) -> str:
    """Interpolate by the quotient of the sizes."""
    return _resize(operand(arguments[0]).type, results[0], arguments[-2:])


def _resize(x: TensorType, made: TensorType, factors: Arguments) -> str:
    if not _whole(x.dims[2:]) or not _whole(made.dims[2:]):
        return f"{x} to {made}"
    for size, wanted, factor in zip(x.dims[2:], made.dims[2:], factors, strict=True):
        if factor is not None and size * factor != wanted:  # type: ignore[operator]  # they are whole
            return f"{size} to {wanted} by {factor}"
    return ""


def group_norm(arguments: Arguments, results: Results) -> str:
    """Normalise groups of channels, whose sizes are fixed."""
    x = operand(arguments[0]).type
    return "" if _whole(x.dims[1:]) else f"normalising groups of {x}"


def variance(arguments: Arguments, results: Results) -> str:
    """Take it over axes of fixed sizes, of more elements than `correction`."""
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
    """Take the root of a sum of squares."""
    x, order, *_ = arguments
    if not operand(x).type.dims:
        return "a reduction of a scalar"
    return "" if order == 2 else f"a norm of order {order}"


def _whole(dims: "tuple[Dim, ...] | list[Dim]") -> bool:
    return all(isinstance(size, int) for size in dims)
