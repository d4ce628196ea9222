"""The quantized ops once more: plain numpy, one row at a time, slow and separate.

All arguments are arrays, of which a bias may be None. Numbers are float32 throughout,
and halves are rounded to even, as the recipes' design says.
"""

import block_reference
import numpy as np
from eight_rows import one_by_one, unpack_int4

F = np.float32


def quantize_row(x: np.ndarray) -> tuple[np.ndarray, np.float32, int]:
    """Quantize a row x float32 [in] to int8.

    Returns:
        q int8 [in]; how many steps make 1.0; the zero point.
    """
    low, high = min(F(0), x.min()), max(F(0), x.max())
    scale = F(1) if low == high else F(255) / (high - low)
    a, b = low * scale, high * scale
    zero = F(-128) - a if (F(-128) + a) + (F(127) + b) > 0 else F(127) - b
    zero = int(np.rint(min(max(zero, F(-128)), F(127))))
    return np.clip(np.rint(x * scale) + F(zero), -128, 127).astype(np.int8), scale, zero


def quantize_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Quantize each row of x float32 [..., in] to int8.

    Returns:
        q int8 in the shape of x; scale float32 [..., 1], how many steps make 1.0;
            zero_point int32 [..., 1].
    """
    rows = [quantize_row(row) for row in x.reshape(-1, x.shape[-1])]
    lead = (*x.shape[:-1], 1)
    q = np.array([row[0] for row in rows], np.int8).reshape(x.shape)
    scale = np.array([row[1] for row in rows], F).reshape(lead)
    return q, scale, np.array([row[2] for row in rows], np.int32).reshape(lead)


def linear_qd8(q, scale, zero_point, weight, weight_scale, bias) -> np.ndarray:
    """Return the product float32 [..., out] of quantized rows and an int8 weight.

    q is int8 [..., in], the weight int8 [out, in]; integers are added up in int64.
    """
    wide = weight.astype(np.int64)
    out = np.empty((q.size // q.shape[-1], weight.shape[0]), F)
    pairs = zip(scale.reshape(-1), zero_point.reshape(-1), strict=True)
    for row, (steps, zero) in enumerate(pairs):
        shifted = q.reshape(len(out), -1)[row].astype(np.int64) - int(zero)
        out[row] = (wide @ shifted).astype(F) / steps * weight_scale
        out[row] += F(0) if bias is None else bias
    return out.reshape(*q.shape[:-1], weight.shape[0])


def linear_w8(x, weight, weight_scale, bias) -> np.ndarray:
    """Return x [..., in] times an int8 weight [out, in], plus bias, through float64."""
    wide = weight.astype(np.float64) * weight_scale.astype(np.float64)[:, None]
    y = x.astype(np.float64) @ wide.T
    return (y if bias is None else y + bias).astype(np.float32)


def linear_qb4(q, scale, zero_point, weight, weight_scale, bias) -> np.ndarray:
    """Return the product float32 [..., out] of quantized rows and an int4 weight.

    The weight is in blocks along its inputs. Each block has a scale, and its products
    are added up as integers.
    """
    scales = one_by_one(weight_scale).astype(F)
    blocks = unpack_int4(weight).reshape(*scales.shape, -1)
    offset = (blocks.sum(2).astype(F) * scales).sum(1, dtype=F)
    out = np.empty((q.size // q.shape[-1], len(scales)), F)
    pairs = zip(scale.reshape(-1), zero_point.reshape(-1), strict=True)
    for row, (steps, zero) in enumerate(pairs):
        x = q.reshape(len(out), scales.shape[1], -1)[row].astype(np.int64)
        products = (blocks * x).sum(2).astype(F) * scales
        out[row] = (products.sum(1, dtype=F) - F(zero) * offset) * (F(1) / steps)
        out[row] += F(0) if bias is None else bias
    return out.reshape(*q.shape[:-1], len(scales))


def embedding_q8(weight, scale, indices) -> np.ndarray:
    """Return the rows float32 [..., width] of an int8 table for given indices.

    `scale` has one scale for each row, or one for each block of a row.
    """
    blocks = scale.reshape(len(scale), -1)
    each = np.repeat(blocks, weight.shape[1] // blocks.shape[1], axis=1)
    rows = [weight[i].astype(F) * each[i] for i in indices.reshape(-1)]
    return np.array(rows, F).reshape(*indices.shape, weight.shape[1])


def expert_linear_qd8(
    q, scale, zero_point, weight, weight_scale, experts, bias
) -> np.ndarray:
    """Return the products float32 [rows, out] of quantized rows with their experts.

    `experts` has the number of each row's expert, whose int8 weight it is multiplied
    by.
    """
    out = np.empty((len(q), weight.shape[1]), F)
    for i, expert in enumerate(experts):
        row = (q[i : i + 1], scale[i : i + 1], zero_point[i : i + 1])
        added = None if bias is None else bias[expert]
        out[i] = linear_qd8(*row, weight[expert], weight_scale[expert], added)[0]
    return out


REFERENCE = {
    "kvc::expert_linear_q8": block_reference.expert_linear_q8,
    "kvc::linear_q4": block_reference.linear_q4,
    "kvc::linear_q8": block_reference.linear_q8,
    "kvc::quantize_blocks": block_reference.quantize_blocks,
    "kvc::expert_linear_qd8": expert_linear_qd8,
    "kvc::embedding_q8": embedding_q8,
    "kvc::linear_qb4": linear_qb4,
    "kvc::linear_w8": linear_w8,
    "kvc::linear_qd8": linear_qd8,
    "kvc::quantize_rows": quantize_rows,
}
