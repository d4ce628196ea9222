"""Attention that torch could have computed otherwise.

In: a call of `scaled_dot_product_attention` while an `Attending` is active. Out: the
same numbers as torch's, except where the arguments have infinity or NaN. There torch's
own algorithms (2.13) differ, and how tensors lie in memory decides which one runs.
"""

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Attending(TorchFunctionMode):
    """Computes attention of each row over only the keys that its mask lets it see.

    Without any such key the result is zero. Masked scores and values do not count, even
    if they are NaN. If a score that counts is NaN, the result is NaN, or zero with
    `without_nan`.
    """

    def __init__(self, without_nan: bool) -> None:
        super().__init__()
        self._without_nan = without_nan

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        made = _attention(*args, **(kwargs or {}))
        return made.nan_to_num(nan=0.0) if self._without_nan else made


def _attention(
    q,
    k,
    v,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    *,
    scale=None,
    enable_gqa=False,
):
    assert not dropout_p
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if is_causal:
        seen = seen.tril()
    if attn_mask is not None:
        whole = attn_mask.dtype == torch.bool
        seen = seen & (attn_mask if whole else attn_mask > -torch.inf)
        scores = scores if whole else scores + attn_mask
    scores = scores.masked_fill(~seen, -torch.inf)
    none = (scores == -torch.inf).all(-1, keepdim=True)
    chances = scores.softmax(-1).masked_fill(none | ~seen, 0)
    products = torch.where(seen[..., None], chances[..., None] * v[..., None, :, :], 0)
    return products.sum(-2, dtype=v.dtype)
