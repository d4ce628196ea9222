"""Arguments of a model's forward besides tokens: positions, cache, settings.

Each model gets the arguments that its signature names. A model with an encoder has
other names for the arguments of its decoder.
"""

import inspect
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from kvc.compiler.hugging_face.reading.calls import ModelCall

# Without a mask, these models make one as long as the cache. For a mask that hides
# nothing, only its length matters to them.
_MASKED: Final = frozenset({"biogpt", "falcon"})


def inputs_of(
    decoder: PreTrainedModel, call: ModelCall, seq: int, cache: Cache, keep: int
) -> dict[str, object]:
    """Return the arguments of one call of a model, without tokens and embeddings.

    Args:
        decoder: the model.
        call: the call, with the positions of the caches.
        seq: the number of tokens of this call.
        cache: the caches that the model gets.
        keep: the number of last positions that need logits; 0: all positions.
    """
    known = _arguments(decoder)
    given: dict[str, object] = {cache_name(decoder): cache}
    # An encoder gets all arguments unknown to its model, and has no cache (Switch).
    if "use_cache" in known or not has_encoder(decoder):
        given["use_cache"] = True
    if is_masked(decoder):
        name = of_decoder(decoder, "attention_mask")
        given[name] = torch.ones(call.start.shape[0], seq)
    if takes_positions(decoder):
        given[of_decoder(decoder, "position_ids")] = _positions(call, seq)
    for name in {"logits_to_keep", of_decoder(decoder, "logits_to_keep")} & known:
        given[name] = keep
    return given


def _arguments(decoder: PreTrainedModel) -> set[str]:
    """Return the names of the arguments of a model's forward.

    A model that is composed of an encoder and a decoder passes an argument to the
    decoder if its name has the prefix that `of_decoder` adds.
    """
    names = set(inspect.signature(decoder.forward).parameters)
    if has_encoder(decoder) and isinstance(
        getattr(decoder.config, "decoder", None), PreTrainedConfig
    ):
        part = decoder.get_decoder()  # type: ignore[no-untyped-call]
        taken = inspect.signature(part.forward).parameters
        names |= {of_decoder(decoder, name) for name in taken}
    return names


def has_encoder(model: PreTrainedModel) -> bool:
    """Tell whether a model has an encoder, whose result its decoder attends to."""
    return bool(model.config.is_encoder_decoder)


def of_decoder(model: PreTrainedModel, argument: str) -> str:
    """Return the model's name for an argument of its decoder."""
    return f"decoder_{argument}" if has_encoder(model) else argument


def cache_name(decoder: PreTrainedModel) -> str:
    """Return the model's name for its cache argument."""
    known = inspect.signature(decoder.forward).parameters
    usual = "past_key_values"
    others = (name for name in ("cache_params", "state") if name in known)
    return usual if usual in known else next(others, usual)


def is_masked(decoder: PreTrainedModel) -> bool:
    """Tell whether kvc gives a model a mask; the mask says that all tokens are real."""
    if has_encoder(decoder):
        return of_decoder(decoder, "attention_mask") in _arguments(decoder)
    return decoder.config.model_type in _MASKED


def takes_positions(decoder: PreTrainedModel) -> bool:
    """Tell whether kvc passes the position of each token to a model."""
    return of_decoder(decoder, "position_ids") in _arguments(decoder)


def _positions(call: ModelCall, seq: int) -> Tensor:
    """Return positions int64 [batch, seq].

    If a position has several numbers (axes), the result is [axes, batch, seq].
    """
    if call.places is not None:
        return call.places
    places = call.within(call.start[:, None] + torch.arange(seq))
    return places + call.first if call.first else places
