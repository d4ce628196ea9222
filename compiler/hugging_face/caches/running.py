"""Run a model of transformers once, for what it does and not for what it returns.

In: the model, tokens, the caches that it is to write. Out: nothing; caches and the call
have noted what happened. The encoder of a model that has one runs too.
"""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from kvc.compiler.hugging_face.caches.crossing import Caches
from kvc.compiler.hugging_face.reading.calls import Call, attending
from kvc.compiler.hugging_face.reading.inputs import (
    cache_name,
    has_encoder,
    inputs_of,
    of_decoder,
)

_EAGER: Final = "eager"  # transformers' own attention


def run_alone(model: PreTrainedModel, tokens: Tensor, call: Call) -> None:
    """Run a model on tokens alone, without a cache, in transformers' own attention."""
    before = model.config._attn_implementation
    model.set_attn_implementation(_EAGER)
    try:
        with attending(call):
            model(input_ids=tokens, use_cache=False)
    finally:
        model.set_attn_implementation(before)


def run_model(
    model: PreTrainedModel,
    tokens: Tensor,
    call: Call,
    own: Cache,
    cross: Cache | None = None,
    encoder: Mapping[str, Tensor] | None = None,
    alone: bool = False,
) -> None:
    """Run a decoder, or an encoder and the decoder that attends over its result.

    Args:
        model: of both.
        tokens: of the decoder, int64 [batch, seq].
        call: of these tokens.
        own: the decoder's own caches.
        cross: the cross caches; None without an encoder.
        encoder: what the encoder is given, by name.
        alone: give the model nothing beside these, so that it makes positions itself.
    """
    caches, seq = own, tokens.shape[1]
    if has_encoder(model):
        assert cross is not None, "a decoder attends over it"
        caches, call.encodes = Caches(own, cross), True
        if call.heard is None:
            call.heard = torch.zeros_like(call.start)
    given: Mapping[str, object] = {cache_name(model): caches}
    if not alone:
        given = inputs_of(model, call, seq, caches, keep=0)
    with attending(call):
        model(**(encoder or {}), **{of_decoder(model, "input_ids"): tokens}, **given)
