"""What a model reads beside what its bundle takes is told."""

import inspect
import warnings

import pytest
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvc.compiler.hugging_face.reading.left_out import (
    MEDIA,
    PICTURES,
    SOUNDS,
    VIDEOS,
    PartLeftOut,
    media_of,
    medium_of,
    warn_of_left_out,
)
from kvc.compiler.hugging_face.reading.tasks import class_of, maker_of

_DECLARED = {"image": PICTURES, "video": VIDEOS, "audio": SOUNDS}
# A text model whose class declares a picture, which no argument of it is.
_DECLARES_WRONGLY = {"blt"}


def makers_of_text() -> list[tuple[str, type[PreTrainedModel], PreTrainedConfig]]:
    """Return each type that makes text of its default configuration, and its class."""
    found = []
    for name in CONFIG_MAPPING:
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:  # a type without defaults
            continue
        maker = maker_of("generate", config)
        if maker is not None:
            found.append((name, class_of(maker, config), config))
    return found


def reads(kind: type[PreTrainedModel], config: PreTrainedConfig) -> set[str]:
    """Return what a model of several parts says that it reads beside texts.

    The class of a text model alone says the same of the whole that it is a part of.
    """
    parts = {name for name in vars(config) if name.endswith("_config")}
    own = inspect.signature(kind.forward).parameters
    if not parts and not any("pixel" in name or "input_f" in name for name in own):
        return set()
    declared = kind.input_modalities
    said = (declared,) if isinstance(declared, str) else declared or ()
    return {_DECLARED[name] for name in said if name in _DECLARED}


# It imports thousands of modules' classes. A trace changes `nn.Module`, and Python then
# looks at each class below it: a millisecond each time.
@pytest.mark.last
@pytest.mark.filterwarnings("ignore")
def test_of_every_type_that_makes_text_what_it_reads_is_known():
    listed = makers_of_text()
    silent = {
        name: missing
        for name, kind, config in listed
        if (missing := reads(kind, config) - media_of(kind, config))
    }
    assert len(listed) > 250
    assert silent.keys() == _DECLARES_WRONGLY
    towers = [name for name, kind, config in listed if media_of(kind, config)]
    assert len(towers) > 80


@pytest.mark.parametrize(
    ("name", "medium"),
    [
        ("pixel_values", PICTURES),
        ("pixel_values_videos", VIDEOS),
        ("input_features_mask", SOUNDS),
        ("vq_config", PICTURES),
        ("input_ids", None),
        ("inputs_embeds", None),
    ],
)
def test_a_name_speaks_of_what_its_words_do(name, medium):
    assert medium_of(name) == medium


def model_of(name: str) -> PreTrainedModel:
    config = AutoConfig.for_model(name)
    maker = maker_of("generate", config)
    assert maker is not None
    model = object.__new__(class_of(maker, config))
    vars(model).update(config=config, _modules={})
    return model


def test_a_text_model_that_is_made_of_a_larger_one_is_told_of():
    with pytest.warns(PartLeftOut, match="type llama4 also reads pictures, .*no-pict"):
        warn_of_left_out(model_of("llama4"), set(), set())


def test_what_is_taken_or_left_out_on_purpose_is_not_told_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_left_out(model_of("llama4"), {PICTURES}, set())
        warn_of_left_out(model_of("llama4"), set(), {PICTURES, VIDEOS})
        warn_of_left_out(model_of("llama"), set(), set())


def test_all_that_is_left_out_is_listed_and_videos_go_with_pictures():
    with pytest.warns(PartLeftOut, match="also reads sounds, .* not take$"):
        warn_of_left_out(model_of("gemma4"), {PICTURES}, set())
    with pytest.warns(PartLeftOut, match="reads pictures, videos and sounds, .* alone"):
        warn_of_left_out(model_of("gemma4"), set())
    assert set(MEDIA) == media_of(type(model_of("gemma4")), model_of("gemma4").config)


def test_a_tower_for_videos_alone_is_told_of_where_pictures_are_taken():
    model = model_of("video_llava")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_left_out(model, {PICTURES}, set())
    vars(model)["_modules"] = {"video_tower": nn.Identity()}
    with pytest.warns(PartLeftOut, match="also reads videos, which"):
        warn_of_left_out(model, {PICTURES}, set())
