"""What a model reads beside what its bundle takes: pictures, videos, sounds.

In: the class of a model, its configuration, what its methods take. Out: a warning that
names the rest, so that nobody looks for it in vain. What a model reads is told by the
names of its arguments and of its parts' configurations; there is no list of models.
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
# Words in names of arguments and configurations, in the order in which they decide:
# pixel_values_videos are of videos.
_WORDS: Final[Mapping[str, str]] = {
    "video": VIDEOS, "videos": VIDEOS,
    "audio": SOUNDS, "speech": SOUNDS, "sound": SOUNDS,
    "image": PICTURES, "images": PICTURES, "pixel": PICTURES, "patches": PICTURES,
    "vision": PICTURES, "visual": PICTURES, "vq": PICTURES, "vit": PICTURES,
}  # fmt: skip
_SOUNDS: Final = ("input_features", "input_values")
_CONFIG: Final = "_config"
_TEXTS: Final = "input_ids"
# How both are read; and what the decoder of a larger model is handed on by that.
_OTHERS: Final = frozenset(
    {"use_audio_in_video", "deepstack_visual_embeds", "visual_pos_masks"}
)


class PartLeftOut(UserWarning):
    """A model reads something that its bundle does not take; the message says what."""


def media_of(kind: type[PreTrainedModel], config: PreTrainedConfig) -> frozenset[str]:
    """Return what a model reads beside texts, of `MEDIA`.

    Args:
        kind: its class.
        config: its configuration, whose parts count too: a model of the text alone may
            be made of one that speaks of pictures.
    """
    arguments = inspect.signature(kind.forward).parameters
    parts = [
        name.removesuffix(_CONFIG)
        for name in dict.fromkeys([*type(config).sub_configs, *vars(config)])
        if name.endswith(_CONFIG) and getattr(config, name, None) is not None
    ]
    names = [*parts, *(name for name in arguments if name not in _OTHERS)]
    found = media_in(names)
    if found and _TEXTS in arguments:  # InternVL reads videos by the name of pictures
        found |= _declared(kind)
    return found


def _declared(kind: type[PreTrainedModel]) -> frozenset[str]:
    """Return what a class says that it reads; its parts say the same of all."""
    declared: object = kind.input_modalities
    said = (declared,) if isinstance(declared, str) else declared
    names = said if isinstance(said, tuple | list) else ()
    return media_in(map(str, names))


def medium_of(name: str) -> str | None:
    """Return what the name of an argument or a part speaks of, of `MEDIA`."""
    if name.startswith(_SOUNDS):
        return SOUNDS
    words = name.split("_")
    return next((medium for word, medium in _WORDS.items() if word in words), None)


def media_in(names: Iterable[str | None]) -> frozenset[str]:
    """Return what arguments speak of, of `MEDIA`; None is no argument."""
    return frozenset(filter(None, (medium_of(name or "") for name in names)))


def warn_of_left_out(
    model: PreTrainedModel, taken: Set[str], known: Set[str] | None = None
) -> None:
    """Warn of what a model reads and its bundle does not take.

    A tower of pictures reads videos, too, so no part is left out with those, unless
    they have one of their own (Video-LLaVA).

    Args:
        model: that is compiled.
        taken: what the bundle takes, of `MEDIA`.
        known: what the caller has said is to be left out; None: cannot say it.
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
