"""Find the cached tensors of a model, by running it once on tensors without values.

In: a model of transformers. Out: for each layer, the shapes of the layer's keys, values
and states, the layer's window, and the shapes of keys and values that the layer
computes from an encoder's result. Tensors that kvc's cache cannot hold are refused
here, before tracing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.caches.cache import NotingCache
from kvc.compiler.hugging_face.caches.crossing import Caches
from kvc.compiler.hugging_face.caches.latents import latent_layers
from kvc.compiler.hugging_face.caches.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.encoder.encoder_inputs import EncoderInput
from kvc.compiler.hugging_face.reading.calls import ModelCall, attending
from kvc.compiler.hugging_face.reading.inputs import (
    cache_name,
    has_encoder,
    inputs_of,
    of_decoder,
)
from kvc.compiler.hugging_face.reading.model_code import model_code
from kvc.compiler.hugging_face.reading.observing import observed
from kvc.schema.errors import UnsupportedModel
from kvc.schema.rings import Window

# Run a transformers model once, to observe it.


_EAGER: Final = "eager"  # transformers' own attention


def run_alone(model: PreTrainedModel, tokens: Tensor, call: ModelCall) -> None:
    """Run a model on tokens only, without a cache, with transformers' own attention."""
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
    call: ModelCall,
    own: Cache,
    cross: Cache | None = None,
    encoder: Mapping[str, Tensor] | None = None,
    alone: bool = False,
) -> None:
    """Run a decoder, or an encoder and the decoder that attends over its result.

    Args:
        model: the whole model.
        tokens: the decoder's tokens, int64 [batch, seq].
        call: the state of this call, for functions that the model calls.
        own: the caches of the decoder's tokens.
        cross: the cross caches; None without an encoder.
        encoder: the arguments of the encoder, by name.
        alone: whether to pass only tokens, caches and the encoder's arguments, so that
            the model computes the positions itself.
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


# Find the cached tensors of a model.


_TOKENS = 2


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """The cached tensors of a decoder's layers, by layer number.

    Attributes:
        own: caches of the decoder's tokens; a layer that uses the cache of another
            layer has no entry.
        cross: caches of an encoder's result; empty without an encoder.
    """

    own: Mapping[int, CachedLayer]
    cross: Mapping[int, CachedLayer]


def cached_layers(
    decoder: PreTrainedModel, given: EncoderInput | None = None
) -> CachedLayers:
    """Return the cached tensors of each layer.

    Args:
        decoder: the model.
        given: the input of the model's encoder; None without an encoder.

    Raises:
        UnsupportedModel: the model caches nothing, or uses a form of cache that kvc
            does not know.
        ParametersEmpty: the model has no weights.
    """
    with stand_ins(decoder), observed(decoder):
        start = torch.zeros(1, dtype=torch.int64)
        call = ModelCall(start, start + _TOKENS)
        cache, cross = NotingCache(call), NotingCache(call, cross=True)
        tokens = torch.zeros(1, _TOKENS, dtype=torch.int64)
        encoder = None if given is None else {given.name: given.example}
        how, alone = "it is run on two tokens and empty caches", None
        if given is None:
            alone = partial(run_alone, decoder, tokens, call)
        with model_code(decoder, how, alone=alone):
            run_model(decoder, tokens, call, cache, cross, encoder)
    if not cache.noted and not cache.states:
        raise _unsupported(decoder, "it puts no keys, values or states into its cache")
    if given is not None and not cross.noted:
        reason = "it puts nothing computed from its encoder's result into its cache"
        raise _unsupported(decoder, reason)
    if len(call.windows) + call.crossed < len(call.kept):
        reason = "it attends over a cache by code of its own, not by the interface"
        raise _unsupported(decoder, reason)
    crossed = {layer: CachedLayer(shape) for layer, shape in cross.noted.items()}
    return CachedLayers(_own_layers(decoder, cache, call), crossed)


def _own_layers(
    decoder: PreTrainedModel, cache: NotingCache, call: ModelCall
) -> dict[int, CachedLayer]:
    latent = latent_layers(decoder)
    shapes = {
        layer: replace(shape, window=_window(layer, call), latent=layer in latent)
        for layer, shape in cache.noted.items()
    }
    return {
        layer: CachedLayer(shapes.get(layer), cache.states.get(layer, {}))
        for layer in sorted({*shapes, *cache.states})
    }


def _window(layer: int, call: ModelCall) -> Window | None:
    """Return the window of a layer's cache: the widest window of its attentions.

    The result is None if one of the attentions over the cache sees all positions.
    """
    found = [window for number, window in call.windows if number == layer]
    known = [window for window in found if window is not None]
    return Window(max(known)) if known and len(known) == len(found) else None


def _unsupported(decoder: PreTrainedModel, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=type(decoder).__name__, reason=reason)
