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
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    attend_into(out, q, k, v, valid_length, scale, causal)
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


def attend_into(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid_length: Tensor,
    scale: float | None,
    causal: bool,
) -> None:
    """Write `attention` of the other arguments into `out`, contiguous.

    Raises:
        ValueError: a valid length is negative or larger than the cache; nothing has
            been written then.
    """
    lengths: list[int] = valid_length.tolist()
    _check_lengths(lengths, k.shape[2])
    if len(lengths) == 1:
        _attend_row(out, q, k, v, lengths[0], scale, causal)
        return
    for row, valid in enumerate(lengths):
        o, x, y, z = (tensor.narrow(0, row, 1) for tensor in (out, q, k, v))
        _attend_row(o, x, y, z, valid, scale, causal)


def _check_lengths(lengths: list[int], capacity: int) -> None:
    for row, valid in enumerate(lengths):
        if not 0 <= valid <= capacity:
            raise ValueError(
                f"attention: row {row} has {valid} valid positions, "
                f"the cache has {capacity}"
            )


def _attend_row(
    out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: int,
    scale: float | None,
    causal: bool,
) -> None:
    """Attend within one row, over its first `valid` keys."""
    seq = q.shape[2]
    blind = _count_blind(seq, valid, causal)
    if blind > 0:
        out.narrow(2, 0, blind).zero_()
        out, q = out[:, :, blind:], q[:, :, blind:]
    if blind < seq:
        k, v = k.narrow(2, 0, valid), v.narrow(2, 0, valid)
        attend = _attend_one if seq == 1 else _attend_many
        attend(out, q, k, v, scale, causal)


def _count_blind(seq: int, valid: int, causal: bool) -> int:
    """Return how many leading queries see no key."""
    if valid == 0:
        return seq
    return max(0, seq - valid) if causal else 0


def _attend_one(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float | None, _: bool
) -> None:
    """Attend from one query, which sees every key: a head group's heads are rows."""
    groups = (1, k.shape[1], q.shape[1] // k.shape[1], -1)
    attended = scaled_dot_product_attention(q.reshape(groups), k, v, scale=scale)
    out.view(groups).copy_(attended)


def _attend_many(
    out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool
) -> None:
    """Attend from several queries; not more than keys when causal."""
    seq, valid = q.shape[2], k.shape[2]
    mask = None
    if causal and valid > seq:
        mask = torch.ones(seq, valid, dtype=torch.bool, device=q.device).tril(
            valid - seq
        )
    out.copy_(
        scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            is_causal=causal and mask is None,
            scale=scale,
            enable_gqa=True,
        )
    )
