"""int8 cache rows: quantize them, and use them in attention.

A row [width] is stored as int8 with one float32 scale; its value is `rows * scale`. A
whole cache is never widened: `int8_products.py` multiplies by int8 rows.
"""

import torch
from torch import Tensor

from kvc.schema.frozen import frozen

# Tensors, since each number among torch's arguments costs 3 to 4 us (2026-11).
_STEPS = torch.tensor(127.0)
_LEAST_SCALE = torch.tensor(torch.finfo(torch.float32).tiny)


@torch.library.custom_op("kvc::quantize_cache", mutates_args=())
def quantize_cache(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row of `x`, symmetric: scale = max(absmax / 127, 2**-126).

    Rows are `x / scale`, rounded, halves to even. A row with a NaN or an infinity is
    stored as zeros with a scale that is NaN or infinite: all of it stands for NaN.

    Args:
        x: floating [..., width], with rows to write into a cache.

    Returns:
        int8 [..., width], from -127 to 127; and float32 [...], above 0 or not finite.

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
    """Write what `quantize_cache` returns into `outs`, contiguous and fitting."""
    rows, scale = outs
    exact = x.to(torch.float32)
    torch.amax(exact.abs(), -1, out=scale)
    torch.maximum(scale.div_(_STEPS), _LEAST_SCALE, out=scale)
    steps = exact / scale.unsqueeze(-1)
    rows.copy_(steps.round_().nan_to_num_(0.0))


@frozen
class Int8Rows:
    """A part of an int8 cache; where attention reads it, it is asked like a tensor.

    Attributes:
        rows: int8 [batch, kv_heads, keys, width].
        scale: float32 [batch, kv_heads, keys].
    """

    rows: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        """Return the shape of what the rows stand for."""
        return self.rows.shape

    def narrow(self, dim: int, start: int, length: int) -> "Int8Rows":
        """Return a part along the batch, the heads or the keys."""
        assert dim in (0, 1, 2), "rows are whole"
        rows = self.rows.narrow(dim, start, length)
        return Int8Rows(rows, self.scale.narrow(dim, start, length))

    def numel(self) -> int:
        """Return how many elements the rows have."""
        return self.rows.numel()

    def widened(self, dtype: torch.dtype) -> Tensor:
        """Return what the rows stand for."""
        return self.rows.to(dtype).mul_(self.scale.unsqueeze(-1))


Cache = Tensor | Int8Rows


def as_cache(rows: Tensor, scale: Tensor | None) -> Cache:
    """Return keys or values as attention reads them; with a scale they are int8."""
    return rows if scale is None else Int8Rows(rows, scale)


def _check_rows(x: Tensor) -> None:
    if not x.is_floating_point() or x.dim() == 0 or x.shape[-1] == 0:
        shape = list(x.shape)
        raise ValueError(f"quantize_cache: {x.dtype} {shape} has no rows to quantize")
