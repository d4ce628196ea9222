"""What a language model takes of pictures, and whether kvc may read them as it does.

In: a model of transformers that makes text, how it counts positions. Out: a
`PictureInput`, None for a model without pictures. kvc makes embeddings of a picture
first and feeds them in the places of its tokens, which is all there is to a picture as
`picture_reading.py` finds. Its places may see each other (Gemma 3); they are then fed
in a call of their own. A model that reads pictures in another way is refused.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import torch
from transformers import PreTrainedModel

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.caches.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.encoder.encoding_methods import (
    call_of,
    features_of,
    picture_features,
)
from kvc.compiler.hugging_face.pictures.picture_reading import (
    check_axes,
    read_joined,
    refused,
    widest,
)
from kvc.compiler.hugging_face.pictures.sized_pictures import PictureInput, tower_of
from kvc.compiler.hugging_face.reading.inputs import has_encoder
from kvc.compiler.hugging_face.reading.model_code import asked_for, model_code
from kvc.compiler.hugging_face.reading.observing import observed
from kvc.compiler.hugging_face.reading.picture_settings import (
    OTHERWISE,
    configured_size,
    takes_pictures,
)
from kvc.schema.errors import UnsupportedModel

_TOKENS: Final = ("image_token_id", "image_token_index")


def picture_input(
    model: PreTrainedModel,
    prepared: tuple[int, int] | None,
    first: int,
    layers: Mapping[int, CachedLayer],
) -> PictureInput | None:
    """Return what a model takes of a picture, None for one without pictures.

    Args:
        model: that makes text.
        prepared: height and width of all pictures; None: as its configuration says.
        first: the number of the first position.
        layers: what they cache.

    Raises:
        UnsupportedModel: it reads pictures in a way that kvc does not.
    """
    features = features_of(model)
    if features is None or not takes_pictures(model):
        return None
    asked = _asked_beside(features)
    if asked:
        raise refused(model, f"of a picture it asks for {', '.join(asked)}, too")
    found = (getattr(model.config, name, None) for name in _TOKENS)
    token = next((one for one in found if type(one) is int), None)
    size = prepared or configured_size(model.config)
    if has_encoder(model):
        raise refused(model, "it has an encoder of texts, and reads pictures")
    if token is None:
        raise refused(model, "its configuration names no token of a picture")
    sized = tower_of(model)
    if sized is not None:
        check_axes(model, sized[1], token)
        tower = sized[1]
        return PictureInput(token, 0, (0, 0), tower.channels, tower=tower)
    if size is None:
        reason = (
            "its configuration has no image_size: each picture has a size of its own, "
            "and as many places in a prompt as that asks for; kvc reads pictures of "
            "one size, with as many places each"
        )
        raise refused(model, reason)
    vision = getattr(model.config, "vision_config", model.config)
    channels = getattr(vision, "num_channels", 3)
    given = PictureInput(token, 0, size, channels)
    given = PictureInput(token, _positions(model, given), size, channels)
    return replace(given, joined=read_joined(model, given, first, widest(layers)))


def _asked_beside(features: Callable[..., object]) -> list[str]:
    """Return what a model has to be given of a picture beside its pixels."""
    without = inspect.Parameter.empty
    return [
        name
        for name, parameter in inspect.signature(features).parameters.items()
        if (parameter.default, parameter.kind)
        == (without, parameter.POSITIONAL_OR_KEYWORD)
        and name != "pixel_values"
    ]


def _positions(model: PreTrainedModel, given: PictureInput) -> int:
    """Return how many embeddings a model makes of a picture.

    Raises:
        UnsupportedModel: it cannot be run on pixels, or attends by code of its own.
    """
    call = call_of(None)
    how = "it is run on a picture of {} x {}".format(*given.size)
    try:
        with model_code(model, how, OTHERWISE), stand_ins(model), observed(model):
            made = picture_features(model, call, given.pixels())
    except UnsupportedModel as error:
        parts = _of_parts(model, given)
        if not parts:
            raise
        raise refused(model, parts) from error
    if not call.among:
        raise refused(model, "it attends within pictures by code of its own")
    return made.shape[0]


def _of_parts(model: PreTrainedModel, given: PictureInput) -> str:
    """Return why a model that takes several parts of a picture is refused, else ""."""
    parts = torch.ones_like(given.pixels()[None])  # of zeros it would be padding
    try:
        with stand_ins(model), observed(model):
            picture_features(model, call_of(None), parts)
    except Exception as error:
        if not asked_for(error):
            return ""
    return (
        "it takes pixels [pictures, parts, channels, height, width]: a picture is read "
        "in several parts, as many as its size asks for, with a line of text before "
        "each; kvc does not know how to give this model one part alone"
    )
