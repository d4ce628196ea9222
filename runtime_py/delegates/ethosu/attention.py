"""Attention over a cache, and cache updates, on integers.

In: an instruction with values on grids. Out: the tensor of its result. Queries, keys,
values and exponentials are int16; the greatest exponential of a row is 1. The products
of exponentials and values are summed first, and the sum is then divided by the sum of
exponentials. So the precision is the same for rows that see one position and rows that
see thousands.
"""

import math
from typing import Final

import numpy as np

from kvc.runtime.delegates.ethosu import functions
from kvc.runtime.delegates.ethosu.functions import Doubles
from kvc.runtime.delegates.ethosu.lowered_values import LoweredValues, ref
from kvc.runtime.delegates.ethosu.numbers import table_of_lines
from kvc.runtime.delegates.ethosu.tosa import Element, Shape
from kvc.schema.graph import Instruction

_PLACES: Final = 1 << 16  # entries of a table over score differences
_ONE: Final = (1 << 15) - 1  # an exponential of 1
_STEP: Final = 16 * math.log(2) / _PLACES  # of scores; the last place is 2 ** -16
_HIDDEN: Final = 1 << 28  # steps by which the score of a hidden position is lowered
_MOST_COARSER: Final = 16  # exponent of 2; a single step then decides
# The bound of a score: hidden scores stay below all visible ones.
_FARTHEST: Final = (1 << 27) - (1 << 17)


def cache_update(values: LoweredValues, step: Instruction) -> str:
    """Write rows to a cache [1, heads, slots, width], from a start slot on."""
    builder, result = values.builder, step.results[0]
    cache, rows, start = (ref(step.arguments[i]) for i in (0, 1, 2))
    _, *held = values.shape(cache)
    _, heads, count, _ = values.shape(rows)
    written = builder.scatter(
        builder.reshape(values.on_grid_of(cache, result), tuple(held)),
        _slots(values, start, heads, count),
        builder.reshape(values.on_grid_of(rows, result), values.shape(rows)[1:]),
    )
    return builder.reshape(written, values.shape(result))


def _slots(values: LoweredValues, start: int, heads: int, count: int) -> str:
    """Return the slot of each new row in each head, int32 [heads, count].

    Args:
        values: the values of the partition.
        start: id of the value with the first slot.
        heads: the number of heads.
        count: the number of new rows.
    """
    key = ("slots", start, heads, count)
    if key not in values.shared:
        builder = values.builder
        after = builder.constant(np.arange(count)[None], Element.INT32)
        first = builder.reshape(values.name(start), (1, 1))
        line = builder.arithmetic("ADD", first, after)
        values.shared[key] = builder.tile(line, (heads, count))
    return values.shared[key]


def attention(values: LoweredValues, step: Instruction) -> str:
    """Attend from queries to the valid slots of a cache, with a causal mask."""
    q, k, v, length = (ref(step.arguments[i]) for i in range(4))
    (_, heads, seq, width), (_, groups, slots, depth) = values.shape(q), values.shape(v)
    given = step.arguments[4]
    scale = given if isinstance(given, float) else width**-0.5
    builder = values.builder
    rows = heads // groups * seq
    queries = builder.reshape(values.as_int16(q), (groups, rows, width))
    keys = builder.reshape(values.as_int16(k), (groups, slots, width))
    products = builder.matmul(queries, builder.transpose(keys, (0, 2, 1)))
    scaled = values.grid(q).scale * values.grid(k).scale * scale / _STEP
    reach = float(width * values.reach(q) * values.reach(k))
    scores = _bounded(values, products, scaled, reach)
    apart = builder.reshape(scores, (groups, heads // groups, seq, slots))
    hidden = _hidden(values, length, seq, slots)
    weights = _exponentials(values, builder.arithmetic("ADD", apart, hidden))
    return _average(values, weights, v, step.results[0], (groups, rows, slots, depth))


def _bounded(values: LoweredValues, products: str, scale: float, reach: float) -> str:
    """Rescale products to scores, int32, clipped so that a mask can still hide each.

    Scores that could exceed int32 are clipped in coarser units, and then shifted back.

    Args:
        values: the values of the partition.
        products: name of the tensor of products of queries and keys.
        scale: the scores per unit of `products`.
        reach: the greatest possible absolute product.
    """
    builder, most = values.builder, scale * reach
    coarser = min(max(0, math.frexp(most)[1] - 31), _MOST_COARSER)
    steps = math.ldexp(scale, -coarser)
    made = values.rescaled(products, [steps], Element.INT32, [reach])
    if most <= _FARTHEST:
        return made
    bound = _FARTHEST >> coarser
    made = builder.with_number("MAXIMUM", made, -bound)
    made = builder.with_number("MINIMUM", made, bound)
    return builder.with_number("LOGICAL_LEFT_SHIFT", made, coarser)


def _hidden(values: LoweredValues, length: int, seq: int, slots: int) -> str:
    """Return numbers to add to scores, int32 [1, 1, seq, slots].

    The number is 0 for slots that a query sees, and far below 0 for all other slots.
    """
    key = ("hidden", length, seq, slots)
    if key not in values.shared:
        builder = values.builder
        valid = builder.reshape(values.name(length), (1, 1, 1, 1))
        last = np.arange(seq).reshape(1, 1, seq, 1) - seq
        ends = builder.arithmetic("ADD", valid, builder.constant(last, Element.INT32))
        slot = np.arange(slots).reshape(1, 1, 1, slots)
        left = builder.arithmetic("SUB", ends, builder.constant(slot, Element.INT32))
        sign = builder.with_number("ARITHMETIC_RIGHT_SHIFT", left, 31)  # -1 or 0
        by = builder.constant(np.full((1, 1, 1, 1), _HIDDEN), Element.INT32)
        values.shared[key] = builder.multiply(sign, by)
    return values.shared[key]


def _exponentials(values: LoweredValues, scores: str) -> str:
    """Return exponentials of scores as int16; the greatest of each row is about 1."""
    builder = values.builder
    below = builder.arithmetic("SUB", scores, builder.reduce("REDUCE_MAX", scores))
    place = values.rescaled(
        builder.with_number("ADD", below, _PLACES // 2 - 1), [1.0], Element.INT16
    )
    entries = table_of_lines(_exponential, 1.0, 1 / _ONE)
    return values.rescaled(builder.table(place, entries), [2.0**-7], Element.INT16)


def _exponential(place: Doubles) -> Doubles:
    """Return exponentials for indices of a table.

    The first entry is 0; all scores below the table's range are looked up there.
    """
    exact = np.exp((place - (_PLACES // 2 - 1)) * _STEP)
    made: Doubles = np.where(place <= -_PLACES // 2, 0.0, exact)
    return made


def _average(
    values: LoweredValues,
    weights: str,
    v: int,
    result: int,
    sizes: tuple[int, int, int, int],
) -> str:
    """Return the average of the value `v` by weights, on the grid of the result.

    The weights of a row have the sum T = m 2 ** (30 - n), and their products with `v`
    have the sum A 2 ** b. A is shifted left by the number of bits by which T is below
    its greatest possible value, so that neither A nor T is clipped.
    """
    builder, (groups, rows, slots, depth) = values.builder, sizes
    bits = (slots - 1).bit_length()
    wide = values.rescaled(weights, [1.0], Element.INT32)
    totals = builder.reduce("REDUCE_SUM", builder.reshape(wide, (groups, rows, slots)))
    held = builder.reshape(values.as_int16(v), (groups, slots, depth))
    sums = builder.matmul(builder.reshape(weights, (groups, rows, slots)), held)
    made = values.rescaled(sums, [2.0**-bits], Element.INT32)
    share, moved = functions.inverse(builder, totals)
    more = builder.with_number("SUB", moved, 16 - bits)
    lifted = builder.arithmetic("LOGICAL_LEFT_SHIFT", made, more)
    average = builder.multiply(lifted, share, functions.INVERSE_BITS)
    shape: Shape = values.shape(result)
    scale = values.grid(v).scale / (1 << 14)
    return builder.reshape(values.stored(average, result, [scale]), shape)
