"""Elementwise operators: sums, products, functions of one value, rotary embeddings.

In: an instruction with values on grids. Out: the tensor of its result. Sums and
products are int32. A function of one value is looked up in a table of its results; for
int16, the table is interpolated linearly.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from kvc.runtime.delegates.ethosu.functions import FUNCTIONS, Doubles
from kvc.runtime.delegates.ethosu.lowered_values import LoweredValues, ref
from kvc.runtime.delegates.ethosu.numbers import (
    LINES,
    table_of,
    table_of_lines,
)
from kvc.runtime.delegates.ethosu.tosa import Element
from kvc.schema.backends.ethosu import ADDITIONS
from kvc.schema.backends.grids import Stored
from kvc.schema.graph import Instruction

# Bits of the common grid of a sum, in addition to those of the values.
_ROOM: Final = {Stored.INT8: 20, Stored.INT16: 13}
_FINER: Final = 64  # steps of int16 in one of int8
_SHIFTED: Final = {"aten::add.Scalar": 1, "aten::sub.Scalar": -1}
_Bounds = tuple[float | None, float | None]
# Functions that clip, which linear interpolation would round off.
_BOUNDED: Final[Mapping[str, Callable[..., _Bounds]]] = {
    "aten::relu": lambda: (0.0, None),
    "aten::clamp": lambda least, most: (least, most),
    "aten::hardtanh": lambda least, most: (least, most),
}


def function(values: LoweredValues, step: Instruction) -> str:
    """Apply a function of one value to each element, by a table."""
    x, result = ref(step.arguments[0]), step.results[0]
    others = [values.argument(one) for one in step.arguments[1:]]
    grid, made = values.grid(x), values.grid(result)
    computed = partial(_applied, FUNCTIONS[step.op], others)
    if grid.stored is made.stored is Stored.INT8:
        return values.builder.table(values.name(x), table_of(computed, grid, made))
    if step.op in _BOUNDED:
        return _bounded(values, x, result, *_BOUNDED[step.op](*others))
    if step.op in _SHIFTED:
        by, alpha = others
        assert isinstance(by, int | float)
        assert isinstance(alpha, int | float)
        return _shifted(values, x, result, _SHIFTED[step.op] * by * alpha)
    name, scale = _as_fine_int16(values, x)
    size = made.scale if made.stored is Stored.INT16 else made.scale / _FINER
    looked_up = values.builder.table(name, table_of_lines(computed, scale, size))
    return values.stored(looked_up, result, [size / LINES])


def addition(values: LoweredValues, step: Instruction) -> str:
    """Add two values as int32, in units that are fine enough for both operands."""
    one, other, result = ref(step.arguments[0]), ref(step.arguments[1]), step.results[0]
    grids = [values.grid(one), values.grid(other)]
    room = min(_ROOM[grid.stored] for grid in grids)
    step_size = 2 * max(grid.scale for grid in grids) / (1 << room)
    rank = len(values.shape(result))
    operands = [
        values.without_zero(value, grid.scale / step_size, rank)
        for value, grid in zip((one, other), grids, strict=True)
    ]
    kind = "ADD" if step.op == ADDITIONS[0] else "SUB"
    total = values.builder.arithmetic(kind, *operands)
    return values.stored(total, result, [step_size])


def product(values: LoweredValues, step: Instruction) -> str:
    """Multiply two tensors."""
    one, other, result = ref(step.arguments[0]), ref(step.arguments[1]), step.results[0]
    rank = len(values.shape(result))
    left, right = (values.without_zero(value, 1.0, rank) for value in (one, other))
    made = values.builder.multiply(left, right)
    scale = values.grid(one).scale * values.grid(other).scale
    return values.stored(made, result, [scale])


def rotary_embedding(values: LoweredValues, step: Instruction) -> str:
    """Rotate the halves of the last axis by angles (RoFormer, Su 2021)."""
    builder, result = values.builder, step.results[0]
    x, cos, sin = (ref(one) for one in step.arguments)
    shape, grid = values.shape(x), values.grid(x)
    half, rank = shape[-1] // 2, len(shape)
    angles = max(values.grid(one).scale for one in (cos, sin))
    turned = values.without_zero(x)
    tables = [
        values.without_zero(one, values.grid(one).scale / angles, rank)
        for one in (cos, sin)
    ]
    first, second = (_half(values, turned, part, half) for part in (0, 1))
    # Two products of 30 bits and their sum are an int32.
    shift = int(all(values.grid(v).stored is Stored.INT16 for v in (x, cos)))

    def times(one: str, table: int, part: int) -> str:
        width = values.builder.shape(tables[table])[-1]
        part = part if width > half else 0
        return builder.multiply(one, _half(values, tables[table], part, half), shift)

    left = builder.arithmetic("SUB", times(first, 0, 0), times(second, 1, 0))
    right = builder.arithmetic("ADD", times(second, 0, 1), times(first, 1, 1))
    made = builder.concat([left, right], rank - 1)
    return values.stored(made, result, [grid.scale * angles * (1 << shift)])


def _applied(
    function: Callable[..., Doubles], others: Sequence[object], x: Doubles
) -> Doubles:
    return function(x, *others)


def _as_fine_int16(values: LoweredValues, x: int) -> tuple[str, float]:
    """Return a value as int16 that uses a table's full range, and its scale."""
    grid, name = values.grid(x), values.as_int16(x)
    if grid.stored is Stored.INT16:
        return name, grid.scale
    fine = values.builder.rescale(name, [(1 << 30, 24)], (0, 0), Element.INT16)
    return fine, grid.scale / _FINER


def _half(values: LoweredValues, name: str, part: int, half: int) -> str:
    """Return the first (`part` 0) or second (`part` 1) half of a tensor's last axis.

    `half` is the size of a half. An axis of this size is returned whole for `part` 0.
    """
    shape = values.builder.shape(name)
    start = (0,) * (len(shape) - 1) + (part * half,)
    return values.builder.slice(name, start, (*shape[:-1], half))


def _bounded(
    values: LoweredValues, x: int, result: int, least: float | None, most: float | None
) -> str:
    """Clip a value to bounds, in units of the finer of its and the result's grid."""
    coarse, fine = values.grid(x).scale, values.grid(result).scale
    made = values.without_zero(x)
    outward = (math.floor, math.ceil) if coarse > fine else (round, round)
    made = _cut_off(values, made, (least, most), coarse, outward)
    if coarse > fine:
        made = values.rescaled(made, [coarse / fine], Element.INT32)
        made = _cut_off(values, made, (least, most), fine, (round, round))
        coarse = fine
    return values.stored(made, result, [coarse])


def _cut_off(
    values: LoweredValues,
    made: str,
    bounds: _Bounds,
    scale: float,
    rounded: tuple[Callable[[float], int], Callable[[float], int]],
) -> str:
    """Clip an int32 tensor to a lower and an upper bound; a bound can be None.

    Args:
        values: the values of the partition.
        made: name of the tensor.
        bounds: the lower and the upper bound, as real numbers.
        scale: the real number that the integer 1 stands for.
        rounded: the functions that round the lower and the upper bound to an integer.
    """
    for kind, bound, whole in zip(("MAXIMUM", "MINIMUM"), bounds, rounded, strict=True):
        if bound is not None:
            steps = max(-(1 << 16), min(1 << 16, bound / scale))
            made = values.builder.with_number(kind, made, whole(steps))
    return made


def _shifted(values: LoweredValues, x: int, result: int, by: float) -> str:
    """Add a number to a value as int32, in units that are fine enough for both grids.

    A table would interpolate wrongly where its entries are clipped.
    """
    grid, made = values.grid(x), values.grid(result)
    room = min(_ROOM[one.stored] for one in (grid, made))
    size = 2 * max(grid.scale, made.scale) / (1 << room)
    steps = max(-(1 << 29), min(1 << 29, by / size))
    moved = values.without_zero(x, grid.scale / size)
    return values.stored(
        values.builder.with_number("ADD", moved, round(steps)), result, [size]
    )
