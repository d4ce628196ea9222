"""Adapt TrOCR's decoder, whose attention does not use transformers' interface.

The decoder attends over its own cache and over the result of an encoder of pictures
(arXiv 2109.10282). In: an attention module or position table of the decoder, and its
arguments. Out: the module's result. `own_attention.py` lists the modules that these
functions replace.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers.cache_utils import Cache, EncoderDecoderCache

from kvc.compiler.hugging_face.attention.replaced import (
    attend_causally,
    attend_to_encoded,
)
from kvc.compiler.hugging_face.caches.crossing import CrossLayer
from kvc.compiler.hugging_face.reading.calls import current_call

if TYPE_CHECKING:
    from transformers.models.trocr.modeling_trocr import (
        TrOCRAttention,
        TrOCRLearnedPositionalEmbedding,
        TrOCRSinusoidalPositionalEmbedding,
    )


def trocr(
    module: "TrOCRAttention",
    hidden_states: Tensor,
    key_value_states: Tensor | None = None,
    *,
    past_key_values: Cache,
    **_: object,
) -> tuple[Tensor, None]:
    """Replace TrOCR's attention, which scales queries before it splits heads."""
    query = _heads(module, module.q_proj(hidden_states) * module.scaling)
    if key_value_states is None:
        key, value = _written(module, _own(past_key_values), hidden_states)
        attended = attend_causally(module, query, key, value, scale=1.0)
        return module.out_proj(attended.flatten(2)), None
    assert isinstance(past_key_values, EncoderDecoderCache), "there is an encoder"
    assert module.layer_idx is not None
    cross = past_key_values.cross_attention_cache
    if past_key_values.is_updated.get(module.layer_idx):
        made = cross.layers[int(module.layer_idx)]
        assert isinstance(made, CrossLayer), "kvc makes it"
        key, value = made.kept()
    else:
        key, value = _written(module, cross, key_value_states)
    attended = attend_to_encoded(module, query, key, value, scale=1.0)
    return module.out_proj(attended.flatten(2)), None


def _own(caches: Cache) -> Cache:
    """Return the caches of a decoder's own tokens.

    `caches` may also include caches of an encoder's result.
    """
    if isinstance(caches, EncoderDecoderCache):
        return caches.self_attention_cache
    return caches


def _written(
    module: "TrOCRAttention", cache: Cache, states: Tensor
) -> tuple[Tensor, Tensor]:
    """Project states to keys and values, and write them to a layer's caches.

    Returns:
        All keys and all values of the layer's caches.
    """
    assert module.layer_idx is not None
    key, value = (
        _heads(module, project(states)) for project in (module.k_proj, module.v_proj)
    )
    return cache.update(key, value, int(module.layer_idx))


def _heads(module: "TrOCRAttention", states: Tensor) -> Tensor:
    """Split [batch, seq, heads * dim] into [batch, heads, seq, dim]."""
    batch, seq, _ = states.shape
    return states.view(batch, seq, module.num_heads, module.head_dim).transpose(1, 2)


def trocr_positions(
    module: "TrOCRLearnedPositionalEmbedding",
    input_ids: Tensor,
    past_key_values_length: int = 0,
    position_ids: Tensor | None = None,
) -> Tensor:
    """Replace TrOCR's position table, whose code reads the values of tensors."""
    places = torch.arange(input_ids.shape[1])[None] + past_key_values_length
    places = current_call().within(places) + module.offset
    return torch.nn.functional.embedding(places, module.weight)


def trocr_sines(
    module: "TrOCRSinusoidalPositionalEmbedding",
    input_ids: Tensor,
    past_key_values_length: int = 0,
) -> Tensor:
    """Replace TrOCR's sine table, which grows when it is too short."""
    table: Tensor = module.weights
    padding = module.padding_idx
    assert padding is not None, "places are counted from it"
    places = module.create_position_ids_from_input_ids(
        input_ids, padding, past_key_values_length
    )
    return table[current_call().within(places, padding + 1)]
