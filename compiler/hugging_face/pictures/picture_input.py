"""The picture input of a language model, and whether kvc can give the model pictures.

In: a model of transformers that generates text, and the position number of a text's
first token. Out: a `PictureInput`, None for a model without pictures. kvc first
computes embeddings of a picture, and then passes them to the model in place of the
picture's placeholder tokens. This module checks that the model does nothing else with a
picture. If the positions of a picture are bidirectional (Gemma 3), they are passed in a
separate call. A model that reads pictures in another way is refused.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.compiler.checkpoints.stand_ins import stand_ins
from kvc.compiler.hugging_face.caches.cache import NotingCache
from kvc.compiler.hugging_face.caches.layer_shapes import CachedLayer
from kvc.compiler.hugging_face.caches.positions import plain_token, same_meeting, seen
from kvc.compiler.hugging_face.encoder.encoding_methods import (
    PICTURE_FEATURES,
    call_of,
    features_of,
    picture_features,
)
from kvc.compiler.hugging_face.pictures.sized_pictures import (
    PictureInput,
    Tower,
    tower_of,
)
from kvc.compiler.hugging_face.reading.calls import ModelCall, attending
from kvc.compiler.hugging_face.reading.inputs import cache_name, has_encoder, inputs_of
from kvc.compiler.hugging_face.reading.model_code import asked_for, model_code
from kvc.compiler.hugging_face.reading.observing import Meeting, observed
from kvc.compiler.hugging_face.reading.picture_settings import (
    OTHERWISE,
    configured_size,
    takes_pictures,
)
from kvc.schema.errors import UnsupportedModel

# Check that a model reads a picture in a text only through its embeddings.


_TYPES: Final = ("token_type_ids", "mm_token_type_ids")  # 1 for tokens of a picture
_AROUND: Final = 3  # tokens before and after the picture of a text
_NOTED: Final = "rope_deltas"  # the position minus the number of tokens before it
_GRID: Final = (2, 3)  # rows and columns of an example of variable size


def widest(layers: Mapping[int, CachedLayer]) -> int:
    """Return the width of the layers' widest window, 0 if no layer has a window."""
    found = [layer.attention for layer in layers.values() if layer.attention]
    return max((one.window.size for one in found if one.window), default=0)


def read_joined(
    model: PreTrainedModel, given: PictureInput, first: int, window: int
) -> bool:
    """Check that a model reads a text with a picture as it reads embeddings.

    If the model takes the types of tokens as an argument, its masks are tested on a
    text that is longer than any window.

    Returns:
        True if the positions of the picture are bidirectional.

    Raises:
        UnsupportedModel: the model uses a picture in another way too.
    """
    length = _AROUND * 2 + given.positions + (window if _types(model) else 0)
    tokens = _text(model, given.token, given.positions, length)
    joined = _compare(
        model,
        lambda: _read(model, given.token, tokens, {"pixel_values": given.pixels()}),
        lambda: _fed(model, tokens, first),
    )
    if len(set(joined)) > 1:
        reason = "the places of a picture see each other in some of its layers alone"
        raise refused(model, reason)
    return any(joined)


def check_axes(model: PreTrainedModel, tower: Tower, token: int) -> None:
    """Check that a model numbers the positions of pictures as kvc does.

    The numbers are a position's time, row and column.

    Raises:
        UnsupportedModel: the numbers differ, or the model cannot be run.
    """
    rows, columns = _GRID
    count = rows * columns
    tokens = _text(model, token, count, _AROUND * 2 + count)
    sides = torch.tensor([[1, rows * tower.merge, columns * tower.merge]])
    patches = torch.zeros(count * tower.merge**2, tower.width)
    beside = {"pixel_values": patches, "image_grid_thw": sides}
    with _forgetting(model):
        _compare(
            model,
            lambda: _read(model, token, tokens, beside),
            lambda: _fed(model, tokens, 0, _with_axes(rows, columns)),
        )


def _with_axes(rows: int, columns: int) -> Tensor:
    """Return time, row and column of each position of a text with a picture.

    The result is int64 [3, 1, seq].
    """
    before, after = torch.arange(_AROUND), torch.arange(_AROUND)
    end = _AROUND + max(rows, columns)
    places = torch.cartesian_prod(
        torch.zeros(1, dtype=torch.int64), torch.arange(rows), torch.arange(columns)
    )
    start, rest = (one.expand(3, -1) for one in (before, after + end))
    return torch.cat([start, places.T + _AROUND, rest], dim=1)[:, None]


@contextmanager
def _forgetting(model: PreTrainedModel) -> Iterator[None]:
    """Restore `rope_deltas`, which a model sets when it reads pictures, at the end."""
    noting = [part for part in model.modules() if hasattr(part, _NOTED)]
    before = [getattr(part, _NOTED) for part in noting]
    try:
        yield
    finally:
        for part, found in zip(noting, before, strict=True):
            setattr(part, _NOTED, found)


def _text(model: PreTrainedModel, token: int, places: int, length: int) -> Tensor:
    """Return a text int64 [1, length], in which `places` tokens are `token`.

    `token` is the placeholder token of a picture.
    """
    tokens = torch.full((1, length), plain_token(model.config.get_text_config()))
    tokens[:, _AROUND : _AROUND + places] = token
    return tokens


_Run = tuple[Sequence[Meeting], Sequence[bool]]


def _compare(
    model: PreTrainedModel, read: Callable[[], _Run], feed: Callable[[], _Run]
) -> Sequence[bool]:
    """Check that two runs of a model compute the same values.

    `read` runs the model on a text with a picture, and `feed` runs it on embeddings.

    Returns:
        For each attention in the run of `read`, whether the picture is bidirectional.

    Raises:
        UnsupportedModel: the values differ.
    """
    try:
        with model_code(model, "it is run on a text with a picture", OTHERWISE):
            (whole, joined), (fed, _) = read(), feed()
    except UnsupportedModel as error:
        told = error.reason.removesuffix(OTHERWISE)
        raise refused(model, f"in a text with a picture, {told}") from error
    rest = whole[len(whole) - len(fed) :]
    alike = len(rest) == len(fed) and all(map(same_meeting, rest, fed))
    if not alike:
        parts = (
            f"{one.op} has other values"
            for one, other in zip(rest, fed, strict=False)
            if not same_meeting(one, other)
        )
        what = next(parts, "it runs other operations")
        raise refused(
            model,
            "it computes a different result for a text with a picture than for the "
            f"same embeddings without one: {what}",
        )
    return joined


def _read(
    model: PreTrainedModel, token: int, tokens: Tensor, given: Mapping[str, Tensor]
) -> _Run:
    """Run a model on tokens and a picture alone, without kvc's arguments.

    Returns:
        The values that the model computes; and for each attention, whether the
        picture's positions are bidirectional.
    """
    shown = tokens == token
    beside = dict.fromkeys(_types(model), shown.to(torch.int64))
    with stand_ins(model), observed(model) as meetings:
        call = _call(tokens, 0)
        if beside:
            call.picture = range(_AROUND, _AROUND + int(shown.sum()))
        cached = {cache_name(model): NotingCache(call)}
        with attending(call), _pictures_apart(model):
            model(input_ids=tokens, **given, **beside, **cached)
    return [*meetings, *map(seen, call.windows)], call.joined


def _types(model: PreTrainedModel) -> list[str]:
    """Return the model's argument names for the types of tokens."""
    known = inspect.signature(model.forward).parameters
    return [name for name in _TYPES if name in known]


@contextmanager
def _pictures_apart(model: PreTrainedModel) -> Iterator[None]:
    """Let a model compute picture features in a call separate from its cache."""
    with ExitStack() as stack:
        for module in model.modules():
            features: object = getattr(module, PICTURE_FEATURES, None)
            if callable(features):
                stack.enter_context(_replaced(module, partial(_apart, features)))
        yield


@contextmanager
def _replaced(module: nn.Module, features: Callable[..., object]) -> Iterator[None]:
    """Replace a module's function that computes features of a picture.

    At the end, an earlier replacement of the function is restored.
    """
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


def _fed(
    model: PreTrainedModel, tokens: Tensor, first: int, places: Tensor | None = None
) -> _Run:
    """Run a model on the tokens' embeddings, with all of kvc's arguments.

    Returns:
        The values that the model computes; and for each attention, whether the
        picture's positions are bidirectional.
    """
    with stand_ins(model), observed(model) as meetings:
        call = _call(tokens, first)
        call.places = places
        embeddings = model.get_input_embeddings()(tokens)
        before, cache = len(meetings), NotingCache(call)
        beside = inputs_of(model, call, tokens.shape[1], cache, keep=0)
        with attending(call):
            model(inputs_embeds=embeddings, **beside)
    return [*meetings[before:], *map(seen, call.windows)], call.joined


def _call(tokens: Tensor, first: int) -> ModelCall:
    start = torch.zeros(1, dtype=torch.int64)
    return ModelCall(start, start + tokens.shape[1], first=first)


def refused(model: PreTrainedModel, reason: str) -> UnsupportedModel:
    """Return the error for a model that reads pictures in a way unknown to kvc."""
    return UnsupportedModel(model=type(model).__name__, reason=reason + OTHERWISE)


# The picture input of a model.


_TOKENS: Final = ("image_token_id", "image_token_index")


def picture_input(
    model: PreTrainedModel,
    prepared: tuple[int, int] | None,
    first: int,
    layers: Mapping[int, CachedLayer],
) -> PictureInput | None:
    """Return a model's picture input, None for a model without pictures.

    Args:
        model: a model that generates text.
        prepared: height and width of all pictures; None: as in the configuration.
        first: the position number of a text's first token.
        layers: the cached tensors of the model's layers.

    Raises:
        UnsupportedModel: the model reads pictures in a way that kvc does not support.
    """
    features = features_of(model)
    if features is None or not takes_pictures(model):
        return None
    asked = _asked_beside(features)
    if asked:
        raise refused(model, f"for a picture it also needs {', '.join(asked)}")
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
        raise refused(
            model,
            "its configuration has no image_size: each picture has a size of its own, "
            "and as many places in a prompt as that asks for; kvc reads pictures of "
            "one size, with as many places each",
        )
    vision = getattr(model.config, "vision_config", model.config)
    channels = getattr(vision, "num_channels", 3)
    given = PictureInput(token, 0, size, channels)
    given = PictureInput(token, _positions(model, given), size, channels)
    return replace(given, joined=read_joined(model, given, first, widest(layers)))


def _asked_beside(features: Callable[..., object]) -> list[str]:
    """Return the names of required arguments for a picture, without the pixels."""
    without = inspect.Parameter.empty
    return [
        name
        for name, parameter in inspect.signature(features).parameters.items()
        if (parameter.default, parameter.kind)
        == (without, parameter.POSITIONAL_OR_KEYWORD)
        and name != "pixel_values"
    ]


def _positions(model: PreTrainedModel, given: PictureInput) -> int:
    """Return the number of embeddings that a model computes for a picture.

    Raises:
        UnsupportedModel: the model cannot run on pixels, or does not attend by
            transformers' interface.
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
    """Return why a model that takes a picture in several parts is refused.

    The result is "" for other models.
    """
    parts = torch.ones_like(given.pixels()[None])  # zeros would count as padding
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
