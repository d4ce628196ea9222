"""`kvc::attention`: attention over the valid prefix of a cache.

In: queries, a whole cache of keys and values, the number of valid positions of
each row. Out: the attended values. Work grows with the valid prefix, not with the
capacity, and no mask over the capacity is ever made. The meaning of
`valid_length` is that of `nonpad_kv_seqlen` in ONNX Attention (opset 24).
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@torch.library.custom_op("kvc::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid_length: Tensor,
    scale: float | None = None,
    causal: bool = True,
) -> Tensor:
    """Attend from each query to the valid keys of its row.

    Args:
        q: [batch, heads, seq, head_dim], the queries of the last `seq` positions.
        k: [batch, kv_heads, capacity, head_dim]; `heads` is a multiple of `kv_heads`.
        v: [batch, kv_heads, capacity, value_dim].
        valid_length: int64 [batch], how many leading positions of `k` and `v` hold
            data, the queries' own positions included.
        scale: factor on the scores; None means 1 / sqrt(head_dim).
        causal: query i sees keys j <= i + valid_length - seq (bottom-right aligned).

    Returns:
        [batch, heads, seq, value_dim]; a query that sees no key gives zeros.
    """
    out = q.new_zeros((*q.shape[:-1], v.shape[-1]))
    for row, valid in enumerate(valid_length.tolist()):
        if not 0 <= valid <= k.shape[2]:
            raise ValueError(
                f"attention: row {row} has {valid} valid positions, "
                f"the cache has {k.shape[2]}"
            )
        # Leading queries that see no key keep their zeros.
        blind = max(0, q.shape[2] - valid) if causal else 0
        if valid > 0 and blind < q.shape[2]:
            block = slice(row, row + 1)
            out[block, :, blind:] = _attend_row(
                q[block, :, blind:], k[block, :, :valid], v[block, :, :valid], scale, causal
            )
    return out


@attention.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid_length: Tensor,
    scale: float | None = None,
    causal: bool = True,
) -> Tensor:
    if q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
        raise ValueError(
            f"attention: {q.shape[1]} query heads, {k.shape[1]} key heads and "
            f"{v.shape[1]} value heads do not group"
        )
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _attend_row(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool
) -> Tensor:
    """Attend within one row whose keys are all valid; seq <= len(k) when causal."""
    heads, seq, kv_heads, valid = q.shape[1], q.shape[2], k.shape[1], k.shape[2]
    if seq == 1:
        # One query sees every key, so the heads of a group can stand as positions.
        grouped = q.reshape(1, kv_heads, heads // kv_heads, q.shape[3])
        attended = scaled_dot_product_attention(grouped, k, v, scale=scale)
        return attended.reshape(1, heads, 1, v.shape[3])
    mask = None
    if causal and valid > seq:
        mask = torch.ones(seq, valid, dtype=torch.bool, device=q.device).tril(valid - seq)
    return scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal and mask is None, scale=scale, enable_gqa=True
    )
