"""Find what a model caches, by running it once on tensors without values.

In: a causal model of transformers. Out: the shape of each layer's keys and values, and
how far back it sees. What kvc's cache cannot hold is refused here, before tracing.
"""

from dataclasses import replace

import torch
from transformers import PreTrainedModel

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.attention import Call, attending
from kvc.compiler.hugging_face.cache import LayerShape, NotingCache
from kvc.compiler.hugging_face.inputs import inputs_of
from kvc.compiler.hugging_face.observing import observed
from kvc.schema.errors import KvcError, UnsupportedModel

_TOKENS = 2
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention")


def cached_shapes(decoder: PreTrainedModel) -> dict[int, LayerShape]:
    """Return what each layer caches, by its number; some share another one's cache.

    Raises:
        UnsupportedModel: it caches something else than keys and values, or nothing.
        ParametersEmpty: the model has no weights.
    """
    _check_layers(decoder)
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
            raise _unsupported(decoder, what) from error
    if not cache.noted:
        raise _unsupported(decoder, "it puts no keys and values into its cache")
    if len(call.windows) < len(call.kept):
        reason = "it attends over a cache by code of its own, not by the interface"
        raise _unsupported(decoder, reason)
    return {
        layer: replace(shape, window=_window(layer, call))
        for layer, shape in cache.noted.items()
    }


def _window(layer: int, call: Call) -> int | None:
    """Return how far any attention sees that is over a layer's cache; None: all."""
    found = [window for number, window in call.windows if number == layer]
    known = [window for window in found if window is not None]
    return max(known) if known and len(known) == len(found) else None


def _check_layers(decoder: PreTrainedModel) -> None:
    """Check that all layers attend, as far as the configuration tells.

    Raises:
        UnsupportedModel: some are recurrent, or convolve.
    """
    config = decoder.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or ()
    other = sorted(kind for kind in set(kinds) if kind not in _ATTENTION)
    if other:
        raise _unsupported(
            decoder,
            f"it has layers of the kind {' and '.join(other)}, whose state is not "
            "keys and values",
        )


def _unsupported(decoder: PreTrainedModel, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=type(decoder).__name__, reason=reason)
