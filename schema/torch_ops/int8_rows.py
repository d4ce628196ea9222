"""Quantize the rows of int8 caches, and multiply by such rows.

A row [width] is stored as int8 with a float32 scale; the row's value is `rows * scale`.
A whole cache is never cast to floats. If the processor multiplies int8 and the cache is
long, the second factor of a product (queries or attention weights) is split into three
int8 digits of base 254, which have the precision of float32; products of digits and
rows are exact integers. In all other cases the rows are cast to floats in pieces that
fit into the processor's cache. Scales never multiply rows: scales of keys multiply the
products, scales of values multiply the attention weights.
"""

from functools import cache

import torch
from torch import Tensor

from kvc.schema.frozen import frozen

# Elements of the largest piece that is widened at once: 1 MiB of float32.
PIECE_CELLS = 2**18
# Digits are faster than widening from this many keys on and up to this many query rows,
# measured in November 2026.
DIGITS_KEYS = 4096
DIGITS_ROWS = 8
# Elements of the largest matrix of integer products; an integer sum has at most as many
# terms, and 127 * 127 * 2**17 is less than 2**31.
PRODUCTS = 2**17
# Products of int8 that float32 adds up exactly: 128 * 128 * 2**10 is 2**24.
_EXACT_SUM = 2**10
_BASE = 254.0
# Tensors, since each number among torch's arguments costs 3 to 4 us (2026-11).
_STEPS = torch.tensor(127.0)
_NEXT = torch.tensor(_BASE)
_LEAST = torch.tensor(torch.finfo(torch.float32).tiny)


@torch.library.custom_op("kvc::quantize_cache", mutates_args=())
def quantize_cache(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row of `x`, symmetric: scale = max(absmax / 127, 2**-126).

    Rows are `x / scale`, rounded, halves to even. A row with a NaN or an infinity is
    stored as zeros with a scale that is NaN or infinite: the whole row represents NaN.

    Args:
        x: rows to write into a cache, [..., width], of a floating-point dtype.

    Returns:
        The rows, int8 [..., width], from -127 to 127; and their scales, float32 [...],
        above 0 or not finite.

    Raises:
        ValueError: `x` is not floating, or its rows have no width.
    """
    _check_rows(x)
    rows = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    quantize_into((rows, scale), x)
    return rows, scale


@quantize_cache.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    _check_rows(x)
    scale = x.new_empty(x.shape[:-1], dtype=torch.float32)
    return x.new_empty(x.shape, dtype=torch.int8), scale


def quantize_into(outs: tuple[Tensor, Tensor], x: Tensor) -> None:
    """Write the results of `quantize_cache` into contiguous tensors of their shapes."""
    rows, scale = outs
    exact = x.to(torch.float32)
    torch.amax(exact.abs(), -1, out=scale)
    torch.maximum(scale.div_(_STEPS), _LEAST, out=scale)
    rows.copy_((exact / scale.unsqueeze(-1)).round_().nan_to_num_(0.0))


@frozen
class Int8Rows:
    """A part of an int8 cache, with the methods of a tensor that attention uses.

    Attributes:
        rows: int8 [batch, kv_heads, keys, width].
        scale: float32 [batch, kv_heads, keys].
    """

    rows: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        """Return the shape of the rows."""
        return self.rows.shape

    def narrow(self, dim: int, start: int, length: int) -> "Int8Rows":
        """Return the part from `start` on, along the batch, the heads or the keys."""
        assert dim in (0, 1, 2), "rows are whole"
        rows = self.rows.narrow(dim, start, length)
        return Int8Rows(rows, self.scale.narrow(dim, start, length))

    def numel(self) -> int:
        """Return the number of elements of the rows."""
        return self.rows.numel()

    def widened(self, dtype: torch.dtype) -> Tensor:
        """Return the dequantized rows in a floating-point dtype."""
        return self.rows.to(dtype).mul_(self.scale.unsqueeze(-1))


Cache = Tensor | Int8Rows


def as_cache(rows: Tensor, scale: Tensor | None) -> Cache:
    """Return keys or values in the form that attention reads.

    The form is `Int8Rows` if there is a scale, else the tensor itself.
    """
    return rows if scale is None else Int8Rows(rows, scale)


def _check_rows(x: Tensor) -> None:
    if not x.is_floating_point() or x.dim() == 0 or x.shape[-1] == 0:
        shape = list(x.shape)
        raise ValueError(f"quantize_cache: {x.dtype} {shape} has no rows to quantize")


def key_products(rows: Tensor, keys: Int8Rows) -> Tensor:
    """Return the products of each query with each key.

    Args:
        rows: the queries, [kv_heads, count, width], float32 or float64.
        keys: [1, kv_heads, keys, width].

    Returns:
        [kv_heads, count, keys], dtype as `rows`.
    """
    stored, scale = keys.rows[0].mT, keys.scale[0].unsqueeze(1)
    digits = _takes_digits(rows, keys)
    step = PRODUCTS // (3 * rows.shape[1]) if digits else _keys_of_piece(keys)
    if not digits and stored.shape[2] <= step:
        return torch.bmm(rows, stored.to(rows.dtype)).mul_(scale)
    products = rows.new_empty((*rows.shape[:2], stored.shape[2]))
    planes, unit = _digits_of(rows) if digits else (rows, None)
    for first in range(0, stored.shape[2], step):
        piece = stored.narrow(2, first, min(step, stored.shape[2] - first))
        part = products.narrow(2, first, piece.shape[2])
        if digits:
            _multiply_digits(part, planes, piece)
        else:
            torch.bmm(rows, piece.to(rows.dtype), out=part)
    if unit is not None:
        products.mul_(unit)
    return products.mul_(scale)


def mixed_values(weights: Tensor, values: Int8Rows) -> Tensor:
    """Return, for each query, the sum of the values weighted by its attention weights.

    Args:
        weights: [kv_heads, count, keys], float32 or float64.
        values: [1, kv_heads, keys, value_dim].

    Returns:
        [kv_heads, count, value_dim], dtype as `weights`.
    """
    stored, scale = values.rows[0], values.scale[0].unsqueeze(1)
    digits = _takes_digits(weights, values)
    step = PRODUCTS // (3 * weights.shape[1]) if digits else _keys_of_piece(values)
    if not digits and stored.shape[1] <= step:
        return torch.bmm(weights * scale, stored.to(weights.dtype))
    mixed = weights.new_zeros((*weights.shape[:2], stored.shape[2]))
    for first in range(0, stored.shape[1], step):
        count = min(step, stored.shape[1] - first)
        piece = stored.narrow(1, first, count)
        part = weights.narrow(2, first, count) * scale.narrow(2, first, count)
        if digits:
            planes, unit = _digits_of(part)
            sums = _multiply_digits(torch.empty_like(mixed), planes, piece)
            mixed.addcmul_(sums, unit)
        else:
            # Not `baddbmm_`: a sum over many keys is more exact in parts.
            mixed.add_(torch.bmm(part, piece.to(weights.dtype)))
    return mixed


def multiply_int8(left: Tensor, right: Tensor) -> Tensor:
    """Multiply int8 matrices; the result is exact if all sums fit int32.

    If the processor lacks int8 products, the matrices are multiplied in pieces as
    float32, which is 20 to 60 times as fast as torch's loops for 128 rows (measured in
    November 2026).

    Args:
        left: int8 [rows, in].
        right: int8 [in, columns].

    Returns:
        int32 [rows, columns].
    """
    if left.shape[1] == 1:
        # torch._int_mm of 2.13 does not write such results if `right` is transposed.
        return left.to(torch.int32) * right.to(torch.int32)
    if _multiplies_int8():
        return torch._int_mm(left, right)
    product = left.new_zeros((left.shape[0], right.shape[1]), dtype=torch.int32)
    width = PIECE_CELLS // _EXACT_SUM
    for start in range(0, left.shape[1], _EXACT_SUM):
        inner = slice(start, start + _EXACT_SUM)
        wide = left[:, inner].float()
        for first in range(0, right.shape[1], width):
            columns = slice(first, first + width)
            part = torch.mm(wide, right[inner, columns].float())
            product[:, columns].add_(part.to(torch.int32))
    return product


def _keys_of_piece(part: Int8Rows) -> int:
    _, kv_heads, _, width = part.shape
    return max(1, PIECE_CELLS // (kv_heads * max(1, width)))


def _takes_digits(rows: Tensor, part: Int8Rows) -> bool:
    keys, width = part.shape[2:]
    return (
        keys >= DIGITS_KEYS
        and 0 < rows.shape[1] <= DIGITS_ROWS
        and rows.dtype == torch.float32
        and width > 1  # see multiply_int8
        and _multiplies_int8()
    )


@cache
def _multiplies_int8() -> bool:
    """Tell whether the processor multiplies int8 matrices fast and exactly."""
    supported: bool = torch.cpu._is_vnni_supported()
    return supported and is_exact()


def is_exact() -> bool:
    """Test whether torch's int8 product is exact: oneDNN saturates without VNNI."""
    left = torch.full((9, 64), 127, dtype=torch.int8)
    product = torch._int_mm(left, left.new_full((64, 64), 127))
    return bool((product == 64 * 127 * 127).all())


def _multiply_digits(out: Tensor, digits: Tensor, right: Tensor) -> Tensor:
    """Multiply `digits` by int8 matrices, and write the products into `out`.

    Args:
        out: [n, rows, m].
        digits: [n, 3 * rows, k], the three digits of each row, from `_digits_of`.
        right: int8 [n, k, m].
    """
    sums = torch.empty((*digits.shape[:2], right.shape[2]), dtype=torch.int32)
    for a, b, result in zip(digits, right, sums, strict=True):
        torch._int_mm(a, b, out=result)
    first, second, third = sums.to(torch.float32).chunk(3, 1)
    second.add_(third, alpha=1 / _BASE)
    return torch.add(first, second, alpha=1 / _BASE, out=out)


def _digits_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split x [n, rows, k] into digits int8 [n, 3 * rows, k] and units [n, rows, 1].

    x is about `unit * (first + second / 254 + third / 254**2)`, each digit from -127 to
    127. The error is at most 2**-24 of the greatest magnitude in the row. The unit of a
    row that is not finite is NaN.
    """
    # Neither `aminmax` nor a norm: those are loops over single elements.
    top = torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())
    unit = torch.maximum(top / _STEPS, _LEAST).add_(top - top)
    rows = x.shape[1]
    digits = torch.empty((x.shape[0], 3 * rows, x.shape[2]), dtype=torch.int8)
    rest = x / unit
    whole = torch.empty_like(rest)
    for place in range(3):
        torch.round(rest, out=whole)
        digits.narrow(1, place * rows, rows).copy_(whole)
        if place < 2:
            rest.sub_(whole).mul_(_NEXT)
    return digits, unit
