"""Adapt encoders whose attention does not use transformers' interface.

These encoders add to each score a bias that depends on the distance between query and
key. In MPNet the bias is a number for each distance and head. In DeBERTa (arXiv
2006.03654) it is the sum of products of the query, and of the key, with a vector for
the distance. In: an attention module and its arguments. Out: the module's result,
computed by `attend_among` with a bias [batch or 1, heads, seq, seq]. `own_attention.py`
lists the modules that these functions replace.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvc.compiler.hugging_face.attention.replaced import attend_among

if TYPE_CHECKING:
    from transformers.models.deberta_v2.modeling_deberta_v2 import (
        DebertaV2Encoder,
    )
    from transformers.models.deberta_v2.modeling_deberta_v2 import (
        DisentangledSelfAttention as DebertaV2Attention,
    )
    from transformers.models.mpnet.modeling_mpnet import (
        MPNetEncoder,
        MPNetSelfAttention,
    )


def mpnet(
    module: "MPNetSelfAttention",
    hidden_states: Tensor,
    attention_mask: object = None,
    position_bias: Tensor | None = None,
    **_: object,
) -> tuple[Tensor]:
    """Replace MPNet's attention."""
    query, key, value = (
        project(hidden_states)
        .unflatten(2, (-1, module.attention_head_size))
        .transpose(1, 2)
        for project in (module.q, module.k, module.v)
    )
    return (module.o(attend_among(query, key, value, bias=position_bias).flatten(2)),)


def mpnet_bias(module: "MPNetEncoder", states: Tensor, *args: object) -> Tensor:
    """Return the bias [1, heads, seq, seq] of MPNet, which all rows share."""
    bias: Tensor = type(module).compute_position_bias(module, states[:1], *args)  # type: ignore[no-untyped-call]
    return bias


def deberta_v2(
    module: "DebertaV2Attention",
    hidden_states: Tensor,
    attention_mask: object,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, None]:
    """Replace the attention of DeBERTa-v2 and DeBERTa-v3."""
    asking = hidden_states if query_states is None else query_states
    given = (module.query_proj, asking), (module.key_proj, hidden_states)
    heads = module.num_attention_heads
    # DeBERTa merges rows and heads into one axis.
    query, key = (module.transpose_for_scores(p(x), heads) for p, x in given)
    value = module.value_proj(hidden_states).unflatten(2, (heads, -1)).transpose(1, 2)
    factor = 1 + sum(kind in module.pos_att_type for kind in ("c2p", "p2c"))
    bias = None
    if module.relative_attention:
        flat: Tensor = module.disentangled_attention_bias(  # type: ignore[no-untyped-call]
            query, key, relative_pos, rel_embeddings, factor
        )
        bias = _apart(flat, heads)
    query, key = _apart(query, heads), _apart(key, heads)
    scale = float(query.shape[3] * factor) ** -0.5
    return attend_among(query, key, value, scale=scale, bias=bias).flatten(2), None


def _apart(tensor: Tensor, heads: int) -> Tensor:
    """Split [batch * heads, ...] into [batch, heads, ...]."""
    return tensor.view(-1, heads, *tensor.shape[1:])


def deberta_distances(
    module: "DebertaV2Encoder",
    hidden_states: Tensor,
    query_states: Tensor | None = None,
    relative_pos: Tensor | None = None,
) -> Tensor | None:
    """Return distances of queries and keys, int64 [1, seq, seq].

    Similar large distances get the same number. The function computes what
    `make_log_bucket_position` of transformers computes, without the operator `sign`,
    which backends lack.
    """
    if relative_pos is not None or not module.relative_attention:
        return relative_pos
    numbers = torch.arange(hidden_states.shape[1])
    distances = numbers[:, None] - numbers[None, :]
    buckets, most = module.position_buckets, module.max_relative_positions
    if buckets > 0 and most > 0:
        middle = buckets // 2
        far = distances.abs().clamp(min=middle).float()
        steps = torch.log(far / middle) / math.log((most - 1) / middle) * (middle - 1)
        bucket = (torch.ceil(steps) + middle) * distances.clamp(-1, 1)
        near = distances.abs() <= middle
        distances = torch.where(near, distances, bucket.to(torch.int64))
    return distances[None]
