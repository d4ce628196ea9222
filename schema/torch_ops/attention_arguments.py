"""Check the arguments of `kvc::attention`, apart from the values of tensors.

The same checks run on real and on fake tensors. Sizes may then be symbolic, so they are
compared through `torch._check_value`, which keeps a condition for later where it cannot
be decided.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kvc.schema.rings import can_keep
from kvc.schema.torch_ops.row_lengths import check_row_lengths

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_LAYOUTS = ("linear", "circular")


class Attention(NamedTuple):
    """The arguments of `kvc::attention`, which says what they are."""

    q: Tensor
    k: Tensor
    v: Tensor
    valid_length: Tensor
    scale: float | None = None
    causal: bool = True
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    mask: Tensor | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None
    layout: str = "linear"
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    row_lengths: Tensor | None = None
    keep: int = 0


def check_arguments(given: Attention) -> None:
    """Check what does not depend on values.

    Raises:
        ValueError: with the first thing that does not fit.
    """
    q, k, v = given.q, given.k, given.v
    _check_operands(q, k, v, given.valid_length)
    check_row_lengths(given.row_lengths, q.shape[0], "attention")
    _check_dtypes(q, k, v, given.k_scale is not None)
    scales = {"k_scale": given.k_scale, "v_scale": given.v_scale}
    missing = [name for name, scale in scales.items() if scale is None]
    _check(len(missing) != 1, "one of k_scale and v_scale alone")
    for name, scale in scales.items():
        if scale is not None:
            _check_scale(scale, name, k)
    _check_settings(given.window_left, given.window_right, given.softcap, given.layout)
    fits = can_keep(given.keep, given.layout, k.shape[2])
    _check(fits, f"{given.keep} of {k.shape[2]} positions kept, {given.layout}")
    if given.mask is not None:
        _check_mask(given.mask, q)
    if given.slopes is not None:
        _check_per_head(given.slopes, "slopes", q)
        dtype = given.slopes.dtype
        _check(dtype == torch.float32, f"slopes are {dtype}, not float32")
    if given.sinks is not None:
        _check_per_head(given.sinks, "sinks", q)


def check_lengths(lengths: list[int], slots: int, layout: str) -> None:
    """Check the number of valid positions of each row.

    Raises:
        ValueError: one is negative, or more than a linear cache can hold.
    """
    for row, valid in enumerate(lengths):
        if valid < 0 or (valid > slots and layout == "linear"):
            raise ValueError(
                f"attention: row {row} has {valid} valid positions, "
                f"the cache has {slots}"
            )


def _check_operands(q: Tensor, k: Tensor, v: Tensor, valid_length: Tensor) -> None:
    _check(
        q.dim() == k.dim() == v.dim() == 4,
        f"q, k and v have {q.dim()}, {k.dim()} and {v.dim()} dimensions, not 4 each",
    )
    shapes = f"q {_text(q)}, k {_text(k)} and v {_text(v)}"
    for tensor in (k, v):
        _check(q.shape[0] == tensor.shape[0], f"different batches in {shapes}")
    _check(q.shape[3] == k.shape[3], f"different widths of q and k in {shapes}")
    _check(q.shape[3] > 0, f"heads of no width in {shapes}")
    _check(k.shape[2] == v.shape[2], f"different slots of k and v in {shapes}")
    _check(
        k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0 and k.shape[1] == v.shape[1],
        f"{q.shape[1]} query heads, {k.shape[1]} key heads and "
        f"{v.shape[1]} value heads do not group",
    )
    _check(
        valid_length.dtype == torch.int64 and valid_length.dim() == 1,
        f"valid_length is {valid_length.dtype} {_text(valid_length)}, "
        f"not int64 of one dimension",
    )
    _check(
        valid_length.shape[0] == q.shape[0],
        f"{valid_length.shape[0]} valid lengths for {q.shape[0]} rows",
    )


def _check_dtypes(q: Tensor, k: Tensor, v: Tensor, scaled: bool) -> None:
    found = f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}"
    if scaled:
        fits = q.dtype in _DTYPES and k.dtype == v.dtype == torch.int8
        _check(fits, f"{found}, not floating, int8 and int8, which have scales")
        return
    narrow = q.dtype == torch.float32 and k.dtype == torch.float16
    fits = q.dtype in _DTYPES and k.dtype == v.dtype and (q.dtype == k.dtype or narrow)
    _check(fits, f"{found}, not one floating dtype, or float16 beside float32")


def _check_scale(scale: Tensor, name: str, k: Tensor) -> None:
    shaped = scale.dim() == 3
    for dim in range(3):
        shaped = shaped and scale.shape[dim] == k.shape[dim]
    _check(
        shaped and scale.dtype == torch.float32,
        f"{name} is {scale.dtype} {_text(scale)}, not float32 {list(k.shape[:3])}",
    )


def _check_settings(
    left: int | None, right: int | None, softcap: float | None, layout: str
) -> None:
    for name, window in (("window_left", left), ("window_right", right)):
        _check(window is None or window >= 0, f"{name} is {window}, less than 0")
    _check(
        softcap is None or 0 < softcap < math.inf,
        f"softcap is {softcap}, not a positive number",
    )
    _check(layout in _LAYOUTS, f"layout {layout!r} is not 'linear' or 'circular'")


def _check_mask(mask: Tensor, q: Tensor) -> None:
    _check(
        mask.dtype == torch.bool or mask.is_floating_point(),
        f"the mask is {mask.dtype}, neither bool nor floating",
    )
    text = (
        f"the mask is {_text(mask)}, not [{q.shape[0]} or 1, {q.shape[1]} or 1, "
        f"{q.shape[2]}, positions]"
    )
    _check(mask.dim() == 4, text)
    for dim in (0, 1):
        # A symbolic size is q's: asking whether it is 1 would fix it.
        size: int | torch.SymInt = mask.shape[dim]
        if not isinstance(size, int) or size != 1:
            _check(size == q.shape[dim], text)
    _check(mask.shape[2] == q.shape[2], text)


def _check_per_head(tensor: Tensor, name: str, q: Tensor) -> None:
    _check(tensor.is_floating_point(), f"{name} are {tensor.dtype}, not floating")
    _check(
        tensor.dim() == 1 and tensor.shape[0] == q.shape[1],
        f"{name} are {_text(tensor)}, not one for each of {q.shape[1]} heads",
    )


def _text(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _check(condition: bool | torch.SymBool, text: str) -> None:
    torch._check_value(condition, lambda: f"attention: {text}")  # type: ignore[no-untyped-call]
