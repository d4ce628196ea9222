"""Reference for operators on rows in blocks of 32, in plain numpy, block by block.

All arguments are arrays, except that a bias may be None. Numbers are float32 where
FORMAT.md has float32, rounded with halves to even; sums of integers are int64.
"""

import numpy as np
from eight_rows import one_by_one, unpack_int4

F = np.float32
BLOCK, LEVELS, MOST_FACTOR, MOST_SUM = 32, 255, 31, 2048


def blocks_of(x: np.ndarray) -> list[np.ndarray]:
    return [x[begin : begin + BLOCK] for begin in range(0, len(x), BLOCK)]


def factors_of(spreads: np.ndarray, most: np.float32) -> tuple[np.ndarray, int]:
    """Return the factor of each block, float32, and the largest allowed factor.

    Args:
        spreads: for each block, the difference of its greatest and its least number.
        most: the largest of the spreads.
    """
    for largest in range(MOST_FACTOR, 0, -1):
        rate = F(largest) / most
        found = np.clip(np.ceil(spreads * rate), F(1), F(largest))
        if found.sum() <= MOST_SUM:
            break
    return found, largest


def quantize_row(x: np.ndarray) -> tuple[np.ndarray, np.float32, list[int], list[int]]:
    """Quantize a row x [in] in blocks.

    Returns:
        The int8 row; the number of quantization steps per unit, which is the row's
        scale; the zero points of the blocks; the factors of the blocks.
    """
    blocks = blocks_of(x)
    lows = np.array([min(F(0), block.min()) for block in blocks])
    highs = np.array([max(F(0), block.max()) for block in blocks])
    most = (highs - lows).max()
    if not np.isfinite(most):
        count = len(blocks)
        return np.zeros(len(x), np.int8), F(np.nan), [0] * count, [1] * count
    factors, scale = np.ones(len(blocks), F), F(1)
    if most > 0 and np.isfinite(F(LEVELS * MOST_FACTOR) / most):
        factors, largest = factors_of(highs - lows, most)
        scale = F(LEVELS * largest) / most
    q, zeros = [], []
    for block, low, high, factor in zip(blocks, lows, highs, factors, strict=True):
        step = scale / factor
        a, b = low * step, high * step
        zero = F(-128) - a if (a - F(128)) + (b + F(127)) > 0 else F(127) - b
        zero = np.rint(min(max(zero, F(-128)), F(127)))
        q.append(np.clip(np.rint(block * step) + zero, -128, 127))
        zeros.append(int(zero))
    return np.concatenate(q).astype(np.int8), scale, zeros, [int(f) for f in factors]


def quantize_blocks(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Quantize rows x [..., in] in n blocks each.

    Returns:
        The int8 rows, of the shape of x; scales float32 [..., 1]; zero points int8
        [..., n]; factors int8 [..., n].
    """
    with np.errstate(all="ignore"):
        rows = [quantize_row(row) for row in x.reshape(-1, x.shape[-1])]
    lead, count = x.shape[:-1], -(-x.shape[-1] // BLOCK)
    shapes = (x.shape, (*lead, 1), (*lead, count), (*lead, count))
    dtypes = (np.int8, F, np.int8, np.int8)
    return tuple(
        np.array([row[i] for row in rows], dtype).reshape(shape)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    )


def steps_of(q: np.ndarray, zero_point: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return each value of quantized rows in steps of its row, int64 [rows, in]."""
    width, count = q.shape[-1], zero_point.shape[-1]
    each = [
        np.repeat(given.reshape(-1, count).astype(np.int64), BLOCK, axis=1)[:, :width]
        for given in (zero_point, factor)
    ]
    return (q.reshape(-1, width).astype(np.int64) - each[0]) * each[1]


def linear_q8(q, scale, zero_point, factor, weight, weight_scale, bias) -> np.ndarray:
    """Return the products of quantized rows and an int8 weight, float32 [..., out].

    The sum of each weight block is an exact int64; these sums are scaled and added in
    order.
    """
    steps, count = steps_of(q, zero_point, factor), weight_scale.shape[1]
    width = weight.shape[1] // count
    total = np.zeros((len(steps), len(weight)), F)
    for i in range(count):
        part = slice(i * width, (i + 1) * width)
        exact = steps[:, part] @ weight[:, part].T.astype(np.int64)
        scaled = exact.astype(F) * weight_scale[:, i]
        total = scaled if i == 0 else total + scaled
    out = total / scale.reshape(-1, 1)
    out = out if bias is None else out + bias
    return out.reshape(*q.shape[:-1], len(weight))


def linear_q4(
    q, scale, zero_point, factor, weight, weight_scale, bias, weight_minimum
) -> np.ndarray:
    """Return the products of quantized rows and an int4 weight, float32 [..., out].

    They are computed in float64 and then rounded. A weight is value * scale + minimum;
    without minimums, (value - 8) * scale.
    """
    scales = one_by_one(weight_scale).astype(np.float64)
    values = unpack_int4(weight)
    block = values.shape[1] // scales.shape[1]
    wide = values * np.repeat(scales, block, axis=1)
    if weight_minimum is not None:
        offsets = 8 * scales + one_by_one(weight_minimum).astype(np.float64)
        wide += np.repeat(offsets, block, axis=1)
    out = steps_of(q, zero_point, factor) @ wide.T / scale.reshape(-1, 1)
    out = (out if bias is None else out + bias).astype(F)
    return out.reshape(*q.shape[:-1], len(values))


def expert_linear_q8(
    q, scale, zero_point, factor, weight, weight_scale, experts, bias
) -> np.ndarray:
    """Return products of rows with their experts' int8 weights, float32 [rows, out]."""
    out = np.empty((len(q), weight.shape[1]), F)
    for i, expert in enumerate(experts):
        row = [each[i : i + 1] for each in (q, scale, zero_point, factor)]
        added = None if bias is None else bias[expert]
        out[i] = linear_q8(*row, weight[expert], weight_scale[expert], added)[0]
    return out
