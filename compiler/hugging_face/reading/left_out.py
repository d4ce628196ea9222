"""Warn about pictures, videos or sounds that a model reads and its bundle does not.

In: the class of a model, its configuration, and the media that its bundle takes. Out: a
warning that names the media that the bundle does not take. The media of a model are
found by two kinds of names: those of the model's arguments, and those of the parts in
its configuration. There is no list of models.
"""

import inspect
from collections.abc import Iterable, Mapping, Set
from typing import Final

from transformers import PreTrainedConfig, PreTrainedModel

from kvc.compiler.request.feedback import warn_caller

PICTURES: Final = "pictures"
PIXELS: Final = "pixel_values"
VIDEOS: Final = "videos"
SOUNDS: Final = "sounds"
MEDIA: Final = (PICTURES, VIDEOS, SOUNDS)
# Words in names of arguments and configurations, in order of precedence:
# `pixel_values_videos` is for videos.
_WORDS: Final[Mapping[str, str]] = {
    "video": VIDEOS, "videos": VIDEOS,
    "audio": SOUNDS, "speech": SOUNDS, "sound": SOUNDS,
    "image": PICTURES, "images": PICTURES, "pixel": PICTURES, "patches": PICTURES,
    "vision": PICTURES, "visual": PICTURES, "vq": PICTURES, "vit": PICTURES,
}  # fmt: skip
_CONFIG: Final = "_config"
# Names of arguments for both media, and arguments that a larger model passes on.
_OTHERS: Final = frozenset(
    {"use_audio_in_video", "deepstack_visual_embeds", "visual_pos_masks"}
)


class PartLeftOut(UserWarning):
    """A model reads inputs that its bundle does not take; the message names them."""


def media_of(kind: type[PreTrainedModel], config: PreTrainedConfig) -> frozenset[str]:
    """Return the media that a model reads besides texts, from `MEDIA`.

    Args:
        kind: the class of the model.
        config: the model's configuration. Its parts are searched, too: a model that
            reads only text may have the configuration of a model that reads pictures.
    """
    arguments = inspect.signature(kind.forward).parameters
    parts = [
        name.removesuffix(_CONFIG)
        for name in dict.fromkeys([*type(config).sub_configs, *vars(config)])
        if name.endswith(_CONFIG) and getattr(config, name, None) is not None
    ]
    found = media_in([*parts, *(name for name in arguments if name not in _OTHERS)])
    if (
        found and "input_ids" in arguments
    ):  # InternVL's arguments name only pictures, also for videos
        declared: object = kind.input_modalities
        said = (declared,) if isinstance(declared, str) else declared
        found |= media_in(map(str, said if isinstance(said, tuple | list) else ()))
    return found


def medium_of(name: str) -> str | None:
    """Return the medium to which the name of an argument or part refers.

    The medium is one of `MEDIA`, or None if the name refers to no medium.
    """
    if name.startswith(("input_features", "input_values")):
        return SOUNDS
    words = name.split("_")
    return next((medium for word, medium in _WORDS.items() if word in words), None)


def media_in(names: Iterable[str | None]) -> frozenset[str]:
    """Return the media, of `MEDIA`, to which the names of arguments refer.

    None among the names is ignored.
    """
    return frozenset(filter(None, (medium_of(name or "") for name in names)))


def warn_of_left_out(
    model: PreTrainedModel, taken: Set[str], known: Set[str] | None = None
) -> None:
    """Warn about media that a model reads and its bundle does not take.

    A tower for pictures reads videos, too, so taking pictures includes videos, unless
    the model has a tower for videos (Video-LLaVA).

    Args:
        model: the model that is compiled.
        taken: the media that the bundle takes, from `MEDIA`.
        known: the media that the caller left out on purpose; None if unknown.
    """
    shared = PICTURES in taken and not _reads_videos_apart(model)
    with_videos = {VIDEOS} if shared else set()
    left = media_of(type(model), model.config) - taken - (known or set()) - with_videos
    if not left:
        return
    *others, last = (medium for medium in MEDIA if medium in left)
    listed = f"{', '.join(others)} and {last}" if others else last
    alone = "" if taken else ": it is of texts alone"
    text = (
        f"{type(model).__name__}: a model of type {model.config.model_type} also reads "
        f"{listed}, which its bundle does not take{alone}"
    )
    if not taken and known is not None and PICTURES in left:
        text += "; --no-pictures (pictures=False) says that this is meant"
    warn_caller(PartLeftOut(text))


def _reads_videos_apart(model: PreTrainedModel) -> bool:
    """Tell whether a model has a part for videos alone."""
    names = (path.rpartition(".")[2] for path, _ in model.named_modules())
    return any(medium_of(name) == VIDEOS for name in names)
