"""Narrow what layers see to the window that a caller asked for.

In: the windows of a model's own masks, and the window of `CacheConfig`, beside which
first positions may be kept (attention sinks; Xiao et al., 2023). Out: the window of
each layer's cache, and of each attention over it. A model that sees no more than the
asked window by itself keeps its own window, without first positions: it was trained to
go without them.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from kvc.compiler.hugging_face.caches.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.reading.calls import Kept
from kvc.compiler.hugging_face.reading.inputs import takes_positions
from kvc.compiler.hugging_face.reading.settings import Sizes, most_positions
from kvc.compiler.request.feedback import warn_caller
from kvc.schema.errors import BadModelSetting, UnsupportedModel
from kvc.schema.rings import Window


class FirstPositionsFar(UserWarning):
    """Texts may become longer than a model knows, and its first positions are kept.

    The message tells the length that the model was made for.
    """


def warn_of_far_positions(model: PreTrainedModel, sizes: Sizes) -> None:
    """Warn if first positions can be further away than in any text that a model knows.

    Positions go on counting while keys keep theirs. The distance to positions within
    the window stays small, that to the first positions grows.
    """
    known, asked = most_positions(model.config), sizes.asked
    far = known is not None and known < sizes.length
    if asked is not None and asked.keep and far and takes_positions(model):
        warn_caller(
            FirstPositionsFar(
                f"{type(model).__name__}: it was made for texts of up to {known} "
                f"tokens; in much longer ones the first {asked.keep} positions are "
                "further away than it has ever seen, and what it says gets worse; "
                f"--max-length {known} (CacheConfig(max_length={known})) ends texts "
                "there, and without --keep only near positions are seen"
            )
        )


def narrowed(own: Window | None, asked: Window | None) -> Window | None:
    """Return the window of a query; None: the query sees all positions.

    Args:
        own: the window of the model's mask, None for all positions.
        asked: the window that the caller asked for, None for that of the model.
    """
    if asked is None or (own is not None and own.size <= asked.size):
        return own
    return asked


def narrow_layers(
    model: PreTrainedModel, layers: Mapping[int, CachedLayer], asked: Window | None
) -> dict[int, CachedLayer]:
    """Return the layers with the windows that their caches are made for.

    Raises:
        BadModelSetting: a window is asked for, and no layer caches keys.
        UnsupportedModel: a layer caches latents.
    """
    attending = [layer.attention for layer in layers.values() if layer.attention]
    if asked is not None and not attending:
        expected = f"nothing, as no layer of {type(model).__name__} attends"
        raise BadModelSetting(
            place="CacheConfig",
            setting="window",
            expected=expected,
            found=repr(asked.size),
        )
    if asked is not None and any(shape.latent for shape in attending):
        reason = (
            "its layers cache latents, parts of which attention reads, and these are "
            "kept of all positions; compile it without a window (CacheConfig(window=), "
            "--window)"
        )
        raise UnsupportedModel(model=type(model).__name__, reason=reason)
    return {number: _narrowed(layer, asked) for number, layer in layers.items()}


def _narrowed(layer: CachedLayer, asked: Window | None) -> CachedLayer:
    shape = layer.attention
    if shape is None:
        return layer
    window = narrowed(shape.window, asked)
    return replace(layer, attention=replace(shape, window=window))


def window_over(
    module: nn.Module, kept: Kept, own: int | None, moving: str = ""
) -> Window | None:
    """Return the window of an attention over a layer's cache; None: all positions.

    Args:
        module: the attention module.
        kept: the cache.
        own: the number of positions that the model's mask shows, None for all.
        moving: what else hides positions or weighs them, "" for nothing; a ring cannot
            have this, since its slots are not in the order of positions.

    Raises:
        UnsupportedModel: the attention cannot run over the cache.
    """
    window = narrowed(None if own is None else Window(own), kept.asked)
    if kept.window is None:
        # A linear cache of such a layer is no longer than what a query sees.
        return None if window is not None and window.keep else window
    reason = ""
    if moving:
        reason = f"its attention has {moving}, and a window"
    elif window is None or window.size > kept.window.size:
        reason = f"it sees more than the {kept.window} positions it saw at first"
    elif window.keep != kept.window.keep:
        reason = (
            f"a cache that keeps the first {kept.window.keep} positions is also "
            f"attended over through the model's own window of {window.size}"
        )
    if reason:
        raise UnsupportedModel(model=type(module).__name__, reason=reason)
    return window
