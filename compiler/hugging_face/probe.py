"""Find what a model caches, by running it once on tensors without values.

In: a causal model of transformers. Out: the shapes of each layer's keys, values and
states, and how far back it sees. What kvc's cache cannot hold is refused here, before
tracing.
"""

import traceback
from dataclasses import replace
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from transformers import PreTrainedModel

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.attention import Call, attending
from kvc.compiler.hugging_face.cache import NotingCache
from kvc.compiler.hugging_face.inputs import inputs_of
from kvc.compiler.hugging_face.latents import latent_layers
from kvc.compiler.hugging_face.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.observing import observed
from kvc.schema.errors import KvcError, UnsupportedModel

_TOKENS = 2
_ASKING = (DataDependentOutputException, DynamicOutputShapeException)


def cached_layers(decoder: PreTrainedModel) -> dict[int, CachedLayer]:
    """Return what each layer caches, by its number; some share another one's cache.

    Raises:
        UnsupportedModel: it caches nothing, or in a way of its own.
        ParametersEmpty: the model has no weights.
    """
    with stand_ins(decoder), observed(decoder):
        start = torch.zeros(1, dtype=torch.int64)
        call = Call(start, start + _TOKENS)
        cache = NotingCache(call)
        tokens = torch.zeros(1, _TOKENS, dtype=torch.int64)
        try:
            with attending(call):
                decoder(input_ids=tokens, **inputs_of(decoder, call, _TOKENS, cache, 1))
        except KvcError:
            raise
        except Exception as error:
            what = f"it cannot be run: {type(error).__name__}: {error}"
            raise _unsupported(decoder, _asked(error) or what) from error
    if not cache.noted and not cache.states:
        raise _unsupported(decoder, "it puts no keys, values or states into its cache")
    if len(call.windows) < len(call.kept):
        reason = "it attends over a cache by code of its own, not by the interface"
        raise _unsupported(decoder, reason)
    latent = latent_layers(decoder)
    shapes = {
        layer: replace(shape, window=_window(layer, call), latent=layer in latent)
        for layer, shape in cache.noted.items()
    }
    return {
        layer: CachedLayer(shapes.get(layer), cache.states.get(layer, {}))
        for layer in sorted({*shapes, *cache.states})
    }


def _asked(error: Exception) -> str:
    """Return where a model asks for values of tensors; "" if it does not."""
    if not isinstance(
        error, DataDependentOutputException | DynamicOutputShapeException
    ):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/transformers/models/" in frame.filename]
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "its code"
    return (
        f"{place} asks for values of tensors ({error.func}), which decide what it "
        "computes, and there are none before it is run"
    )


def _window(layer: int, call: Call) -> int | None:
    """Return how far any attention sees that is over a layer's cache; None: all."""
    found = [window for number, window in call.windows if number == layer]
    known = [window for window in found if window is not None]
    return max(known) if known and len(known) == len(found) else None


def _unsupported(decoder: PreTrainedModel, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=type(decoder).__name__, reason=reason)
