"""Arguments of a model's forward beside tokens: positions, cache, settings.

Models differ in what they take; each gets what its signature names. In a model with an
encoder, those of the decoder have names of their own.
"""

import inspect
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from kvc.compiler.hugging_face.attention import Call

# These make a mask as long as the cache when they are given none; of one that hides
# nothing, only its length matters to them.
_MASKED: Final = frozenset({"biogpt", "falcon"})


def inputs_of(
    decoder: PreTrainedModel, call: Call, seq: int, cache: Cache, keep: int
) -> dict[str, object]:
    """Return the arguments of one call, the tokens or embeddings apart.

    Args:
        decoder: the model.
        call: where the caches are.
        seq: tokens of this call.
        cache: the caches.
        keep: how many of the last positions need logits; 0: all.
    """
    known = inspect.signature(decoder.forward).parameters
    given: dict[str, object] = {cache_name(decoder): cache, "use_cache": True}
    if is_masked(decoder):
        name = of_decoder(decoder, "attention_mask")
        given[name] = torch.ones(call.start.shape[0], seq)
    if takes_positions(decoder):
        given[of_decoder(decoder, "position_ids")] = _positions(call, seq)
    if "logits_to_keep" in known:
        given["logits_to_keep"] = keep
    return given


def has_encoder(model: PreTrainedModel) -> bool:
    """Tell whether a model has an encoder, whose result its decoder attends over."""
    return bool(model.config.is_encoder_decoder)


def of_decoder(model: PreTrainedModel, argument: str) -> str:
    """Return what a model calls an argument of its decoder."""
    return f"decoder_{argument}" if has_encoder(model) else argument


def cache_name(decoder: PreTrainedModel) -> str:
    """Return what a model calls its cache."""
    known = inspect.signature(decoder.forward).parameters
    return "cache_params" if "cache_params" in known else "past_key_values"


def is_masked(decoder: PreTrainedModel) -> bool:
    """Tell whether a model is given a mask, of tokens that all count."""
    known = inspect.signature(decoder.forward).parameters
    if has_encoder(decoder):
        return of_decoder(decoder, "attention_mask") in known
    return decoder.config.model_type in _MASKED


def takes_positions(decoder: PreTrainedModel) -> bool:
    """Tell whether a model is told the position of each token."""
    known = inspect.signature(decoder.forward).parameters
    return of_decoder(decoder, "position_ids") in known


def _positions(call: Call, seq: int) -> Tensor:
    """Return int64 [batch, seq]; padding is at its row's last position.

    After it there may be none, where a table of positions ends.
    """
    places = call.start[:, None] + torch.arange(seq)
    if call.row_lengths is not None:
        places = torch.minimum(places, (call.length[:, None] - 1).clamp(min=0))
    return places + call.first if call.first else places
