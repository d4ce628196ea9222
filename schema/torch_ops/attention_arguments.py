"""What the arguments of `kvc::attention` must fit, values of tensors apart.

The same checks run on real and on fake tensors. Sizes may be symbolic then, so they
are compared through `torch._check_value`, which keeps a condition for later where it
cannot be decided.
"""

import math

import torch
from torch import Tensor

from kvc.schema.rings import can_keep
from kvc.schema.torch_ops.row_lengths import check_row_lengths

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_LAYOUTS = ("linear", "circular")


def check_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid_length: Tensor,
    window_left: int | None,
    window_right: int | None,
    softcap: float | None,
    mask: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    layout: str,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    row_lengths: Tensor | None,
    keep: int,
) -> None:
    """Check what does not depend on values; parameters as those of `attention`.

    Raises:
        ValueError: with the first thing that does not fit.
    """
    _check_operands(q, k, v, valid_length)
    check_row_lengths(row_lengths, q.shape[0], "attention")
    _check_dtypes(q, k, v, k_scale is not None)
    _check((k_scale is None) == (v_scale is None), "one of k_scale and v_scale alone")
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is not None:
            _check_scale(scale, name, k)
    _check_settings(window_left, window_right, softcap, layout)
    fits = can_keep(keep, layout, k.shape[2])
    _check(fits, f"{keep} of {k.shape[2]} positions kept, {layout}")
    if mask is not None:
        _check_mask(mask, q)
    if slopes is not None:
        _check_per_head(slopes, "slopes", q)
        _check(slopes.dtype == torch.float32, f"slopes are {slopes.dtype}, not float32")
    if sinks is not None:
        _check_per_head(sinks, "sinks", q)


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
    fits = q.dtype in _DTYPES and q.dtype == k.dtype == v.dtype
    _check(fits, f"{found}, not one floating dtype")


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
