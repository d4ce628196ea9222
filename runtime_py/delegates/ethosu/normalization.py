"""RMS norms on integers.

In: an instruction with values on grids. Out: the tensor of its result. Each row is
shifted left until its greatest number has 15 bits. The sum of squares of a row is
exact, in 48 bits. So a row of small numbers loses no precision beyond the rounding of
its numbers to their grid.
"""

import math
from typing import Final

import numpy as np

from kvc.runtime.delegates.ethosu import functions
from kvc.runtime.delegates.ethosu.lowered_values import LoweredValues, ref
from kvc.runtime.delegates.ethosu.tosa import Element, GraphBuilder
from kvc.schema.backends.grids import Stored, symmetric
from kvc.schema.calibration import Range
from kvc.schema.graph import Instruction

_DEFAULT_EPSILON: Final = 2.0**-23  # torch's, of float32
_EPSILON_BITS: Final = 30
_MOST_MOVED: Final = 15


def rms_norm(values: LoweredValues, step: Instruction) -> str:
    """Return x / sqrt(mean(x ** 2) + epsilon) * weight, over the last axis.

    Let q be the integers of a row (after a shift, if it is shifted), and S 2 ** bits
    the sum of their squares, with S = m 2 ** (30 - 2 h). Then x / rms = q 2 ** h m **
    -0.5 * sqrt(width / 2 ** bits) / 2 ** 15: the row's scale cancels, except in
    epsilon. If the sum of S and epsilon needs more than 30 bits, both are divided by 4
    ** halvings, and the root by 2 ** halvings.
    """
    builder, result = values.builder, step.results[0]
    x, weight, given = ref(step.arguments[0]), step.arguments[2], step.arguments[3]
    epsilon = given if isinstance(given, float) else _DEFAULT_EPSILON
    *outer, width = values.shape(x)
    bits = (width - 1).bit_length()
    steps = epsilon * width / (values.grid(x).scale ** 2 * (1 << bits))
    halvings = max(0, (math.frexp(steps)[1] - _EPSILON_BITS + 1) // 2)
    numbers = builder.reshape(values.without_zero(x), (1, math.prod(outer), width))
    numbers, added = _moved(builder, numbers, math.ldexp(steps, -2 * halvings))
    squares = _sum_of_squares(values, numbers, bits + 2 * halvings)
    total = builder.arithmetic("ADD", squares, added)
    total = builder.with_number("MAXIMUM", total, 1)
    root, half = functions.inverse_root(builder, total)
    lifted = builder.arithmetic("LOGICAL_LEFT_SHIFT", numbers, half)
    made = builder.multiply(lifted, root, functions.ROOT_BITS)
    scale = math.ldexp(math.sqrt(width / (1 << bits)), -15 - halvings)
    if weight is not None:
        # The weight as 16-bit integers, and their scale.
        exact = values.constant(ref(weight)).astype(np.float32)
        reach = float(np.abs(exact).max(initial=0.0))
        grid = symmetric(Range(-reach, reach), Stored.INT16)
        factors, factor_scale = grid.integers(exact), grid.scale
        shift = (bits + 1) // 2 + 1  # of 30 + bits / 2 bits
        by = builder.constant(factors.reshape(1, 1, width), Element.INT32)
        made = builder.multiply(made, by, shift)
        scale *= factor_scale * (1 << shift)
    return builder.reshape(values.stored(made, result, [scale]), values.shape(result))


def _moved(builder: GraphBuilder, numbers: str, steps: float) -> tuple[str, str]:
    """Shift each row left, by as many bits as 16-bit numbers and epsilon allow.

    Args:
        builder: builds the tensors.
        numbers: int32 [1, rows, width]; the numbers fit 16 bits.
        steps: epsilon in units of the sum of squares of a row that is not shifted.

    Returns:
        The shifted rows, int32 [1, rows, width]; epsilon in units of each row, int32
        [1, rows, 1].
    """
    room = _EPSILON_BITS - math.frexp(steps)[1] if steps else _EPSILON_BITS
    most = min(max(room // 2, 0), _MOST_MOVED)
    other = builder.constant(np.full((1, 1, 1), -1), Element.INT32)
    size = builder.arithmetic("MAXIMUM", numbers, builder.multiply(numbers, other))
    zeros = builder.leading_zeros(builder.reduce("REDUCE_MAX", size))
    free = builder.with_number("SUB", zeros, 32 - _MOST_MOVED)
    moved = builder.with_number("MAXIMUM", free, 0)
    moved = builder.with_number("MINIMUM", moved, most)
    whole = min(round(steps * (1 << (2 * most))), (1 << _EPSILON_BITS) - 1)
    epsilon = builder.constant(np.full((1, 1, 1), whole), Element.INT32)
    left = builder.with_number("SUB", builder.arithmetic("ADD", moved, moved), 2 * most)
    back = builder.multiply(left, other)
    added = builder.arithmetic("ARITHMETIC_RIGHT_SHIFT", epsilon, back)
    return builder.arithmetic("LOGICAL_LEFT_SHIFT", numbers, moved), added


def _sum_of_squares(values: LoweredValues, numbers: str, bits: int) -> str:
    """Return int32 [1, rows, 1]: the sum of squares of each row, times 2 ** -bits."""
    builder, (_, rows, width) = values.builder, values.builder.shape(numbers)
    name = values.rescaled(numbers, [1.0], Element.INT16)
    made = builder.matmul(
        builder.reshape(name, (rows, 1, width)), builder.reshape(name, (rows, width, 1))
    )
    total = values.rescaled(made, [math.ldexp(1.0, -bits)], Element.INT32)
    return builder.reshape(total, (1, rows, 1))
