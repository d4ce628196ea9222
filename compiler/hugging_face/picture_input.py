"""What a language model takes of pictures, and whether kvc may read them as it does.

In: a model of transformers that makes text, how it counts positions. Out: a
`PictureInput`, None for a model without pictures. kvc makes embeddings of a picture
first and feeds them in the places of its tokens. So the model runs once on a text with
a picture in it, and once on embeddings alone, both on tensors without values: wherever
the second meets a known value (positions, rotations, windows), so must the first. The
places of a picture may see each other, as the first shows (Gemma 3); they are then fed
in a call of their own. A model that reads pictures in another way is refused.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.cache import NotingCache
from kvc.compiler.hugging_face.calls import Call, attending
from kvc.compiler.hugging_face.encoding_methods import (
    PICTURE_FEATURES,
    call_of,
    picture_features,
)
from kvc.compiler.hugging_face.inputs import cache_name, has_encoder, inputs_of
from kvc.compiler.hugging_face.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.observing import Meeting, observed
from kvc.compiler.hugging_face.picture_settings import (
    OTHERWISE,
    configured_size,
    takes_pictures,
)
from kvc.compiler.hugging_face.positions import plain_token, same_meeting, seen
from kvc.compiler.hugging_face.probe import asked_for
from kvc.schema.errors import KvcError, UnsupportedModel

_TOKENS: Final = ("image_token_id", "image_token_index")
_TYPES: Final = ("token_type_ids", "mm_token_type_ids")  # 1 where a picture is
_AROUND: Final = 3  # tokens before and after the picture of a text


@dataclass(frozen=True, slots=True)
class PictureInput:
    """What a model takes of a picture.

    Attributes:
        token: that stands in each of its places.
        positions: how many it takes.
        size: its height and width.
        channels: of its pixels.
        joined: whether its places see each other, later ones too.
    """

    token: int
    positions: int
    size: tuple[int, int]
    channels: int
    joined: bool = False

    def pixels(self) -> Tensor:
        """Return an example of a picture, float32 [1, channels, height, width]."""
        return torch.zeros(1, self.channels, *self.size)


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
    if not hasattr(model, PICTURE_FEATURES) or not takes_pictures(model):
        return None
    asked = _asked_beside(model)
    if asked:
        raise _refused(model, f"of a picture it asks for {', '.join(asked)}, too")
    found = (getattr(model.config, name, None) for name in _TOKENS)
    token = next((one for one in found if type(one) is int), None)
    size = prepared or configured_size(model.config)
    if has_encoder(model):
        raise _refused(model, "it has an encoder of texts, and reads pictures")
    if token is None:
        raise _refused(model, "its configuration names no token of a picture")
    if size is None:
        reason = (
            "its configuration has no image_size: each picture has a size of its own, "
            "and as many places in a prompt as that asks for; kvc reads pictures of "
            "one size, with as many places each"
        )
        raise _refused(model, reason)
    vision = getattr(model.config, "vision_config", model.config)
    channels = getattr(vision, "num_channels", 3)
    given = PictureInput(token, 0, size, channels)
    given = PictureInput(token, _positions(model, given), size, channels)
    return replace(given, joined=_read_joined(model, given, first, _widest(layers)))


def _asked_beside(model: PreTrainedModel) -> list[str]:
    """Return what a model has to be given of a picture beside its pixels."""
    features: object = getattr(model, PICTURE_FEATURES)
    assert callable(features), "it was found"
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
    try:
        with stand_ins(model), observed(model):
            made = picture_features(model, call, given.pixels())
    except KvcError:
        raise
    except Exception as error:
        what = f"it cannot be run on a picture: {type(error).__name__}: {error}"
        reason = _of_parts(model, given) or asked_for(error) or what
        raise _refused(model, reason) from error
    if not call.among:
        raise _refused(model, "it attends within pictures by code of its own")
    return made.shape[0]


def _of_parts(model: PreTrainedModel, given: PictureInput) -> str:
    """Return why a model that takes several parts of a picture is refused, else ""."""
    parts = torch.ones_like(given.pixels()[None])  # of zeros it would be padding
    try:
        with stand_ins(model), observed(model):
            picture_features(model, call_of(None), parts)
    except KvcError:
        return ""
    except Exception as error:
        if not asked_for(error):
            return ""
    return (
        "it takes pixels [pictures, parts, channels, height, width]: a picture is read "
        "in several parts, as many as its size asks for, with a line of text before "
        "each; kvc does not know how to give this model one part alone"
    )


def _widest(layers: Mapping[int, CachedLayer]) -> int:
    """Return how many keys a window has at most, 0 where there is none."""
    found = [layer.attention for layer in layers.values() if layer.attention]
    return max((shape.window or 0 for shape in found), default=0)


def _read_joined(
    model: PreTrainedModel, given: PictureInput, first: int, window: int
) -> bool:
    """Check that a text with a picture is one of embeddings.

    Where the model is told which tokens are of a picture, its masks are asked about a
    text that is longer than any window.

    Returns:
        Whether the places of the picture see each other.

    Raises:
        UnsupportedModel: it is more.
    """
    length = _AROUND * 2 + given.positions + (window if _types(model) else 0)
    tokens = torch.full((1, length), plain_token(model.config.get_text_config()))
    tokens[:, _AROUND : _AROUND + given.positions] = given.token
    try:
        (read, joined), fed = _read(model, given, tokens), _fed(model, tokens, first)
    except UnsupportedModel as error:
        what, *_ = error.reason.partition(" (")  # without an error of Python's
        raise _refused(model, f"in a text with a picture, {what}") from error
    except KvcError:
        raise
    except Exception as error:
        what = f"a text with a picture cannot be run: {type(error).__name__}: {error}"
        raise _refused(model, asked_for(error) or what) from error
    rest = read[len(read) - len(fed) :]
    alike = len(rest) == len(fed) and all(map(same_meeting, rest, fed))
    if not alike:
        parts = (
            f"{one.op} has other values"
            for one, other in zip(rest, fed, strict=False)
            if not same_meeting(one, other)
        )
        what = next(parts, "it runs other operations")
        reason = (
            "it computes of a text with a picture something else than of the same "
            f"embeddings without one: {what}"
        )
        raise _refused(model, reason)
    if len(set(joined)) > 1:
        reason = "the places of a picture see each other in some of its layers alone"
        raise _refused(model, reason)
    return any(joined)


def _read(
    model: PreTrainedModel, given: PictureInput, tokens: Tensor
) -> tuple[Sequence[Meeting], Sequence[bool]]:
    """Return what a model computes of tokens and a picture by itself.

    Beside it, for each attention whether the places of the picture see each other.
    """
    types = (tokens == given.token).to(torch.int64)
    beside = dict.fromkeys(_types(model), types)
    with stand_ins(model), observed(model) as meetings:
        call = _call(tokens, 0)
        if beside:
            call.picture = range(_AROUND, _AROUND + given.positions)
        cached = {cache_name(model): NotingCache(call)}
        pixels = given.pixels()
        with attending(call), _pictures_apart(model):
            model(input_ids=tokens, pixel_values=pixels, **beside, **cached)
    return [*meetings, *map(seen, call.windows)], call.joined


def _types(model: PreTrainedModel) -> list[str]:
    """Return by what names a model is told which tokens are of a picture."""
    known = inspect.signature(model.forward).parameters
    return [name for name in _TYPES if name in known]


@contextmanager
def _pictures_apart(model: PreTrainedModel) -> Iterator[None]:
    """Let a model attend within pictures apart from its cache, wherever it does."""
    with ExitStack() as stack:
        for module in model.modules():
            features: object = getattr(module, PICTURE_FEATURES, None)
            if callable(features):
                stack.enter_context(_replaced(module, partial(_apart, features)))
        yield


@contextmanager
def _replaced(module: nn.Module, features: Callable[..., object]) -> Iterator[None]:
    """Let a module make features in another way, which it may do already."""
    own = vars(module)
    before = own.get(PICTURE_FEATURES)
    own[PICTURE_FEATURES] = features
    try:
        yield
    finally:
        del own[PICTURE_FEATURES]
        if before is not None:
            own[PICTURE_FEATURES] = before


def _apart(features: Callable[..., object], *args: object, **others: object) -> object:
    with attending(call_of(None)):
        return features(*args, **others)


def _fed(model: PreTrainedModel, tokens: Tensor, first: int) -> Sequence[Meeting]:
    """Return what a model computes of embeddings, with what kvc gives beside them."""
    with stand_ins(model), observed(model) as meetings:
        call = _call(tokens, first)
        embeddings = model.get_input_embeddings()(tokens)
        before, cache = len(meetings), NotingCache(call)
        beside = inputs_of(model, call, tokens.shape[1], cache, keep=0)
        with attending(call):
            model(inputs_embeds=embeddings, **beside)
    return [*meetings[before:], *map(seen, call.windows)]


def _call(tokens: Tensor, first: int) -> Call:
    start = torch.zeros(1, dtype=torch.int64)
    return Call(start, start + tokens.shape[1], first=first)


def _refused(model: PreTrainedModel, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=type(model).__name__, reason=reason + OTHERWISE)
