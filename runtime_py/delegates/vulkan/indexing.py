"""Translate operators with indices, and operators over caches, to steps of shaders.

Kernels have the form that `kernels.py` describes. For an operator that writes into an
operand, the result array is this operand, and has the operand's old content at first.
All indices are checked before the first write.
"""

import math
from collections.abc import Sequence

import numpy as np

from kvc.runtime.delegates.vulkan.kernels import KERNELS, Kernel, full
from kvc.runtime.delegates.vulkan.products import PRODUCTS, QUANTIZED
from kvc.runtime.delegates.vulkan.steps import (
    Steps,
    check_count,
    check_span,
    strided,
    whole_bits,
)
from kvc.runtime.memory.arrays import Array

_CHECK, _PICK, _PICK_SCALED, _PUT, _ADD, _ADD_WHOLE = range(6)
_UPDATE, _CHECK_INDEX, _CHECK_ROWS = range(3)


def _check(steps: Steps, index: Array, low: int, high: int) -> None:
    """Add a step that reports a fault for each index outside of [low, high)."""
    integers = {0: low, 1: high}
    steps.add("indices", _CHECK, [index], count=index.size, groups=1, integers=integers)


def _moves(
    indices: Sequence[Array], strides: Sequence[int], sizes: Sequence[int]
) -> dict[int, int]:
    """Return a step's integers for its index operands, by the integers' numbers.

    Args:
        indices: the index operands.
        strides: for each operand, the stride of the indexed axis, in elements.
        sizes: for each operand, the size of the indexed axis.
    """
    found = {0: len(indices)}
    for number, (stride, size) in enumerate(zip(strides, sizes, strict=True)):
        found |= {3 + 2 * number: stride, 4 + 2 * number: size}
    return found


class Picked:
    """An array some of whose axes are replaced by index arrays, which are broadcast.

    If the replaced axes are adjacent, the axes of the index arrays take their place in
    the result. Otherwise the axes of the index arrays come first.

    Attributes:
        shape: shape of the result.
        base: the array at index 0 of each replaced axis, viewed in the shape of the
            result.
        indices: the index array of each replaced axis, viewed in the shape of the
            result.
        strides: strides of the replaced axes, in elements.
        sizes: sizes of the replaced axes.
        moved: the axes of `shape` that come from the index arrays.
    """

    def __init__(self, x: Array, indices: Sequence[Array | None]) -> None:
        check_span(x)  # whose elements indices address
        given = {axis: index for axis, index in enumerate(indices) if index is not None}
        axes = list(given)
        kept = [axis for axis in range(x.ndim) if axis not in given]
        dims = np.broadcast_shapes(*(index.shape for index in given.values()))
        place = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
        order: list[int | None] = [*kept]
        order[place:place] = [None] * len(dims)
        self.moved = tuple(range(place, place + len(dims)))
        free = iter(dims)
        self.shape = tuple(next(free) if a is None else x.shape[a] for a in order)
        steps = [0 if axis is None else x.strides[axis] for axis in order]
        self.base = strided(x, self.shape, steps)
        after = len(self.shape) - place - len(dims)
        self.indices = [
            np.broadcast_to(index.reshape(index.shape + (1,) * after), self.shape)
            for index in given.values()
        ]
        self.given = list(given.values())
        self.strides = [x.strides[axis] // x.itemsize for axis in axes]
        self.sizes = [x.shape[axis] for axis in axes]


def _pick(
    steps: Steps, out: Array, x: Array, indices: Sequence[Array | None], wrap: bool
) -> None:
    found = Picked(x, indices)
    for index, size in zip(found.given, found.sizes, strict=True):
        _check(steps, index, -size if wrap else 0, size)
    integers = _moves(found.indices, found.strides, found.sizes)
    tensors = [whole_bits(out), whole_bits(found.base), *found.indices]
    steps.add("indices", _PICK, tensors, count=out.size, integers=integers)


def _put(
    steps: Steps,
    base: Array,
    values: Array,
    indices: Sequence[Array],
    integers: dict[int, int],
    moved: Sequence[int],
    add: float | None = None,
) -> None:
    """Add a step that writes `values` to the elements of `base` that indices select.

    Args:
        steps: collects the steps.
        base: the array to write, at index 0 of each indexed axis.
        values: the numbers to write, of the shape of `base`.
        indices: the index arrays.
        integers: the step's integers for the index arrays.
        moved: the axes that come from the index arrays; the step has them last.
        add: factor on numbers that are added to the old content; None to overwrite it.
    """
    kept = [axis for axis in range(base.ndim) if axis not in moved]
    order = [*kept, *moved]
    base, values, *indices = (a.transpose(order) for a in (base, values, *indices))
    each = math.prod(base.shape[len(kept) :])
    if not each:
        return
    check_count(base.size)
    integers = integers | {1: len(kept), 2: each}
    op, numbers = _PUT, {0: 0.0}
    if add is None:
        base, values = whole_bits(base), whole_bits(values)
    elif base.dtype.kind == "f":
        op, numbers = _ADD, {0: float(add)}
    else:
        op, integers = _ADD_WHOLE, integers | {15: int(add)}
    steps.add(
        "indices",
        op,
        [base, values, *indices],
        count=base.size // each,
        integers=integers,
        numbers=numbers,
    )


def embedding(steps: Steps, out: Sequence[Array], table: Array, index: Array) -> None:
    _pick(steps, out[0], table, [index], wrap=False)


def embedding_q8(
    steps: Steps, out: Sequence[Array], table: Array, scale: Array, index: Array
) -> None:
    _check(steps, index, 0, table.shape[0])
    found = Picked(table, [index])
    integers = _moves(found.indices, found.strides, found.sizes)
    tensors = [out[0], found.base, *found.indices, scale]
    steps.add("indices", _PICK_SCALED, tensors, count=out[0].size, integers=integers)


def index_select(
    steps: Steps, out: Sequence[Array], x: Array, axis: int, index: Array
) -> None:
    before = [None] * (axis % x.ndim)
    _pick(steps, out[0], x, [*before, index.reshape(-1)], wrap=False)


def index_tensor(
    steps: Steps, out: Sequence[Array], x: Array, indices: Sequence[Array | None]
) -> None:
    _pick(steps, out[0], x, indices, wrap=True)


def _along(x: Array, axis: int, shape: tuple[int, ...]) -> tuple[Array, dict[int, int]]:
    """Return `x` at index 0 of an axis, viewed in `shape`, and the step's integers."""
    check_span(x)
    steps = [0 if i == axis else step for i, step in enumerate(x.strides)]
    integers = _moves([x], [x.strides[axis] // x.itemsize], [x.shape[axis]])
    return strided(x, shape, steps), integers


def gather(
    steps: Steps, out: Sequence[Array], x: Array, axis: int, index: Array
) -> None:
    axis %= x.ndim
    _check(steps, index, 0, x.shape[axis])
    base, integers = _along(x, axis, index.shape)
    tensors = [whole_bits(out[0]), whole_bits(base), index]
    steps.add("indices", _PICK, tensors, count=index.size, integers=integers)


def index_put(
    steps: Steps,
    out: Sequence[Array],
    indices: Sequence[Array | None],
    values: Array,
    accumulate: bool,
) -> None:
    found = Picked(out[0], indices)
    for index, size in zip(found.given, found.sizes, strict=True):
        _check(steps, index, -size, size)
    integers = _moves(found.indices, found.strides, found.sizes)
    spread = np.broadcast_to(values, found.shape)
    add = 1 if accumulate else None
    _put(steps, found.base, spread, found.indices, integers, found.moved, add)


def _write_slices(
    steps: Steps,
    out: Array,
    axis: int,
    index: Array,
    source: Array,
    add: float | None,
) -> None:
    axis %= out.ndim
    index = index.reshape(-1)
    _check(steps, index, 0, out.shape[axis])
    found = Picked(out, [*[None] * axis, index])
    integers = _moves(found.indices, found.strides, found.sizes)
    source = np.broadcast_to(source, found.shape)
    _put(steps, found.base, source, found.indices, integers, found.moved, add)


def index_copy(
    steps: Steps, out: Sequence[Array], axis: int, index: Array, source: Array
) -> None:
    _write_slices(steps, out[0], axis, index, source, None)


def index_add(
    steps: Steps,
    out: Sequence[Array],
    axis: int,
    index: Array,
    source: Array,
    alpha: float,
) -> None:
    _write_slices(steps, out[0], axis, index, source, alpha)


def _scatter(add: float | None) -> Kernel:
    def kernel(
        steps: Steps, out: Sequence[Array], axis: int, index: Array, source: Array
    ) -> None:
        (made,) = out
        axis %= made.ndim
        _check(steps, index, 0, made.shape[axis])
        base, integers = _along(made, axis, index.shape)
        values = source[tuple(slice(n) for n in index.shape)]
        _put(steps, base, values, [index], integers, [axis], add)

    return kernel


def scatter_value(
    steps: Steps, out: Sequence[Array], axis: int, index: Array, value: float
) -> None:
    one = steps.temporary((), out[0].dtype)
    full(steps, [one], (), value, None)
    _scatter(None)(steps, out, axis, index, np.broadcast_to(one, index.shape))


def append(steps: Steps, out: Sequence[Array], update: Array, axis: int) -> None:
    """Write `update` to the end of an axis of the result, after the old content."""
    (whole,) = out
    start = whole.shape[axis] - update.shape[axis]
    before = (slice(None),) * (axis % whole.ndim)
    steps.copy(whole[(*before, slice(start, None))], update)


def write_whole(
    steps: Steps, out: Sequence[Array], source: Array, _axis: int = 0
) -> None:
    steps.copy(out[0], source)


def cache_update(
    steps: Steps,
    out: Sequence[Array],
    update: Array,
    starts: Array | None,
    axis: int,
    mode: str,
    lengths: Array | None,
    keep: int,
) -> None:
    (cache,) = out
    axis %= cache.ndim
    if cache.dtype == update.dtype:
        cache, update = whole_bits(cache), whole_bits(update)
    tensors = [cache, update, starts, lengths]
    integers = {0: axis, 1: mode == "circular", 2: keep}
    groups = max(
        1, -(-update.size // 64)
    )  # one group checks starts of rows, even without rows
    steps.add(
        "caches", _UPDATE, tensors, count=update.size, groups=groups, integers=integers
    )


def check_index(
    steps: Steps,
    _out: Sequence[Array],
    index: Array,
    least: int,
    count: int,
    slots: int,
) -> None:
    integers = {0: least, 1: count, 2: slots}
    steps.add(
        "caches", _CHECK_INDEX, [index], count=index.size, groups=1, integers=integers
    )


def check_rows(
    steps: Steps,
    _out: Sequence[Array],
    index: Array,
    lengths: Array,
    most: int,
    slots: int,
) -> None:
    tensors, integers = [index, lengths], {0: most, 1: slots}
    steps.add(
        "caches", _CHECK_ROWS, tensors, count=index.size, groups=1, integers=integers
    )


# Kernels of operators that write; the written operand is not among the arguments.
UPDATES: dict[str, Kernel] = {
    "aten::index_copy": index_copy,
    "aten::index_put": index_put,
    "aten::index_add": index_add,
    "aten::scatter.src": _scatter(None),
    "aten::scatter.value": scatter_value,
    "aten::scatter_add": _scatter(1),
    "aten::copy": write_whole,
    "kvc::append": append,
    "kvc::replace": write_whole,
    "kvc::cache_update": cache_update,
}
FRESH: dict[str, Kernel] = {
    **KERNELS,
    **PRODUCTS,
    **QUANTIZED,
    "aten::embedding": embedding,
    "kvc::embedding_q8": embedding_q8,
    "aten::index_select": index_select,
    "aten::index.Tensor": index_tensor,
    "aten::gather": gather,
}
CHECKS: dict[str, Kernel] = {
    "kvc::check_index": check_index,
    "kvc::check_rows": check_rows,
}
