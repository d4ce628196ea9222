"""Pooling windows in planes.

The library's own pooling loses NaN. If windows do not overlap and have no gaps, a plane
[height, width] is reshaped to [rows, high, columns, wide], and the axes `high` and
`wide` are reduced. For other windows, the elements at each offset of the window are
sliced out of the plane, with channels as the last axis, and the slices are combined
pairwise, first along one axis, then along the other.
"""

from collections.abc import Mapping, Sequence
from functools import partial, reduce

import numpy as np

from kvc.runtime.delegates.xnnpack.builder import Builder
from kvc.runtime.delegates.xnnpack.elementwise import not_numbers
from kvc.runtime.delegates.xnnpack.functions import Binary, Reduction
from kvc.runtime.delegates.xnnpack.nodes import Define, Dims, Tensor
from kvc.runtime.delegates.xnnpack.norms import reduced
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.xnnpack_spatial import Line, lines_of, side_by_side

Pair = tuple[int, int]


def _average(
    b: Builder,
    dims: Dims,
    x: Tensor,
    kernel: Pair,
    stride: Sequence[int],
    padding: Pair,
    ceil_mode: bool,
    padding_counts: bool,
    divisor: int | None,
) -> Tensor:
    lines = lines_of(x.dims, dims, kernel, stride, padding, (1, 1))
    if side_by_side(lines) and divisor is None:
        return _windows(Reduction.MEAN, b, dims, x, kernel)
    total = _put_together(Binary.ADD, b, _channels_last(b, x), lines, 0)
    counts = _counts(lines, padding_counts) if divisor is None else np.array(divisor)
    return _channels_first(b, b.binary(Binary.DIVIDE, total, b.literal(counts)))


def _greatest(
    b: Builder,
    dims: Dims,
    x: Tensor,
    kernel: Pair,
    stride: Sequence[int],
    padding: Pair,
    dilation: Pair,
    _: bool,
) -> Tensor:
    """Return the maximum of each window; NaN if an element of it is NaN."""
    lines = lines_of(x.dims, dims, kernel, stride, padding, dilation)
    if side_by_side(lines):
        return _windows(Reduction.MAX, b, dims, x, kernel)
    x = _channels_last(b, x)
    found = _put_together(Binary.MAXIMUM, b, x, lines, -np.inf)
    lost = _put_together(Binary.ADD, b, not_numbers(b, x), lines, 0)
    return _channels_first(b, b.binary(Binary.SUBTRACT, found, lost))  # keeps -0.0


def _put_together(
    op: Binary, b: Builder, x: Tensor, lines: Sequence[Line], outside: float
) -> Tensor:
    """Combine the elements of each window of x [..., height, width, channels].

    Args:
        op: combines two elements.
        b: the builder.
        x: the planes.
        lines: the windows along height, and the windows along width.
        outside: the value of padding elements.
    """
    for axis, line in zip((len(x.dims) - 3, len(x.dims) - 2), lines, strict=True):
        phases = _phases(b, x, axis, line, outside)
        slices = []
        for place in line.places:
            begin, phase = divmod(place, line.step)
            end = begin + line.count
            slices.append(b.slice(phases[phase], axis, begin, end, line.count))
        x = reduce(partial(b.binary, op), slices)
    return x


def _phases(
    b: Builder, x: Tensor, axis: int, line: Line, outside: float
) -> list[Tensor]:
    """Return the slices of an axis with every `step`-th element.

    There is one slice for each start index below `step`.
    """
    length = line.places[-1] // line.step + line.count
    whole, size = length * line.step, line.before + line.size
    after = max(whole - size, 0)
    if line.before or after:
        before = [line.before if i == axis else 0 for i in range(len(x.dims))]
        behind = [after if i == axis else 0 for i in range(len(x.dims))]
        x = b.pad(x, before, behind, outside)
    if size > whole:
        x = b.slice(x, axis, 0, whole, whole)
    if line.step == 1:
        return [x]
    lead, rest = x.dims[:axis], x.dims[axis + 1 :]
    apart = b.reshape(x, (*lead, length, line.step, *rest))
    phases = (b.slice(apart, axis + 1, i, i + 1, 1) for i in range(line.step))
    return [b.reshape(phase, (*lead, length, *rest)) for phase in phases]


def _counts(lines: Sequence[Line], padding_counts: bool) -> Array:
    """Return how many elements each window has, [height, width, 1].

    If all windows have the same number, return one number.
    """
    high, wide = (np.array(line.counts(padding_counts)) for line in lines)
    counts = np.outer(high, wide)[..., None]
    return counts[:1, 0, 0].reshape(()) if np.ptp(counts) == 0 else counts


def _channels_last(b: Builder, x: Tensor) -> Tensor:
    lead = range(len(x.dims) - 3)
    return b.transpose(x, [*lead, *(len(x.dims) - 3 + i for i in (1, 2, 0))])


def _channels_first(b: Builder, x: Tensor) -> Tensor:
    lead = range(len(x.dims) - 3)
    return b.transpose(x, [*lead, *(len(x.dims) - 3 + i for i in (2, 0, 1))])


def _adaptive(op: Reduction, b: Builder, dims: Dims, x: Tensor, _: object) -> Tensor:
    (high, down), (wide, across) = zip(x.dims[-2:], dims[-2:], strict=True)
    assert isinstance(high, int)
    assert isinstance(wide, int)
    assert isinstance(down, int)
    assert isinstance(across, int)
    return _windows(op, b, dims, x, (high // down, wide // across))


def _windows(
    op: Reduction, b: Builder, dims: Dims, x: Tensor, kernel: tuple[int, int]
) -> Tensor:
    """Reduce windows [high, wide] of x [..., height, width]."""
    lead, (rows, columns), (high, wide) = dims[:-2], dims[-2:], kernel
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    for axis, used in ((len(lead), rows * high), (len(lead) + 1, columns * wide)):
        if x.dims[axis] != used:  # drops elements after the last window
            x = b.slice(x, axis, 0, used, used)
    if rows == columns == 1:
        return reduced(b, op, x, [len(lead), len(lead) + 1], keep=True)
    tiles = b.reshape(x, (*lead, rows, high, columns, wide))
    y = reduced(b, op, tiles, [len(lead) + 1, len(lead) + 3], keep=True)
    return b.reshape(y, dims)


def _indexed(
    define: Define, b: Builder, dims: Dims, *arguments: object
) -> tuple[Tensor, ...]:
    """Return the maxima twice, the second time in place of the unused indices."""
    made = define(b, dims, *arguments)
    assert isinstance(made, Tensor)
    return made, made


DEFINITIONS: Mapping[str, Define] = {
    "aten::_adaptive_avg_pool2d": partial(_adaptive, Reduction.MEAN),
    "aten::adaptive_max_pool2d": partial(_indexed, partial(_adaptive, Reduction.MAX)),
    "aten::avg_pool2d": _average,
    "aten::max_pool2d_with_indices": partial(_indexed, _greatest),
}
