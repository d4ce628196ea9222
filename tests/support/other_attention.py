"""Attention that torch could have computed otherwise.

In: a call of `scaled_dot_product_attention` while a way is on. Out: the same numbers
but where its arguments hold infinity or NaN, of which torch's own ways (2.13) make one
thing or another, by how tensors lie in memory.
"""

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Attending(TorchFunctionMode):
    """Computes attention over the keys that a row sees alone; over none it is zero.

    What a mask takes away does not count, also not where it is NaN. Of scores that are
    NaN it makes NaN, or with `without_nan` zeros.
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
