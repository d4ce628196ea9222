"""How folders say that pixels are made of a picture."""

import numpy as np
import pytest
from encoder_models import write
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.convnext.image_processing_pil_convnext import (
    ConvNextImageProcessorPil,
)
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import (
    DeepseekVLImageProcessorPil,
)
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.janus.image_processing_pil_janus import (
    JanusImageProcessorPil,
)
from transformers.models.siglip.image_processing_pil_siglip import (
    SiglipImageProcessorPil,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from kvc.compiler.hugging_face.reading.picture_settings import read_pictures, size_of
from kvc.runtime.embedding import preparation_of
from kvc.runtime.embedding.pictures import check_prepared
from kvc.schema.errors import BadModelFolder, BadSetting, UnsupportedModel

PROCESSORS = [
    ViTImageProcessorPil(),
    DeiTImageProcessorPil(),
    CLIPImageProcessorPil(),
    CLIPImageProcessorPil(size={"shortest_edge": 20}),  # less than what is kept
    CLIPImageProcessorPil(do_center_crop=False, size={"height": 33, "width": 21}),
    BitImageProcessorPil(do_normalize=False),
    SiglipImageProcessorPil(do_rescale=False, resample=0),
    ViTImageProcessorPil(do_resize=False),
    DeepseekVLImageProcessorPil(size={"height": 60, "width": 60}),
    JanusImageProcessorPil(size={"height": 33, "width": 33}, min_size=20),
    JanusImageProcessorPil(image_mean=[0.5, 0.25, 1.0]),
]


@pytest.mark.parametrize("processor", PROCESSORS, ids=range(len(PROCESSORS)))
@pytest.mark.parametrize("size", [(224, 224), (301, 97), (45, 640), (17, 18)])
def test_pixels_are_those_of_transformers_processor(tmp_path, processor, size):
    processor.save_pretrained(tmp_path)
    settings = read_pictures(tmp_path)
    assert settings is not None
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3))
    picture = Image.fromarray(values.astype(np.uint8))
    wanted = processor(picture, return_tensors="np")["pixel_values"][0]
    found = preparation_of(settings).pixels(picture, "a")
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < 1e-5
    if size_of(settings) is not None:
        assert found.shape[1:] == size_of(settings)


def test_a_folder_without_a_processor_says_nothing(tmp_path):
    assert read_pictures(tmp_path) is None
    assert size_of(None) is None


def test_a_processor_with_steps_of_its_own_is_refused(tmp_path):
    ConvNextImageProcessorPil().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="steps of its own"):
        read_pictures(tmp_path)


@pytest.mark.parametrize("left_out", ["do_resize", "do_pad"])
def test_a_square_that_is_not_made_whole_is_refused(tmp_path, left_out):
    DeepseekVLImageProcessorPil(**{left_out: False}).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="resized and padded to a square"):
        read_pictures(tmp_path)


def test_a_square_without_sides_is_refused(tmp_path):
    JanusImageProcessorPil(min_size=0).save_pretrained(tmp_path)
    with pytest.raises(BadModelFolder, match="no square can be made"):
        read_pictures(tmp_path)


def test_a_size_between_two_is_refused(tmp_path):
    size = {"shortest_edge": 20, "longest_edge": 40}
    ViTImageProcessorPil(size=size).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="longest_edge"):
        read_pictures(tmp_path)


def test_a_file_of_no_processor_is_refused(tmp_path):
    write(tmp_path, "preprocessor_config.json", {"image_processor_type": "Nobody"})
    with pytest.raises(BadModelFolder, match="preprocessor_config"):
        read_pictures(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"resample": None}, "resampling None"),
        ({"resample": 77}, "resampling 77"),
        ({"size": {"height": "a", "width": -3}}, "size"),
        ({"rescale_factor": None}, "factor None"),
        ({"image_mean": "abc"}, "mean"),
        ({"image_std": [0, 0, 0]}, "deviation"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 3}}, "crop"),
    ],
)
def test_numbers_that_make_no_pictures_are_refused(tmp_path, wrong, named):
    told = {"image_processor_type": "ViTImageProcessor", **wrong}
    write(tmp_path, "preprocessor_config.json", told)
    with pytest.raises(BadModelFolder, match=f"no pictures can be made with {named}"):
        read_pictures(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": [0, 5]},
        {"size": [5]},
        {"shortest": 1 << 20},
        {"resampling": 9},
        {"factor": float("inf")},
        {"factor": 10**400},
        {"deviation": [0.5, 0, 0.5]},
        {"mean": [0.5, 0.5]},
        {"deviation": "abc"},
    ],
)
def test_a_bundle_that_says_something_impossible_is_refused(tmp_path, wrong):
    CLIPImageProcessorPil().save_pretrained(tmp_path)
    settings = read_pictures(tmp_path)
    assert settings is not None
    preparation_of(settings)
    with pytest.raises(BadSetting, match="pictures"):
        preparation_of(settings | wrong)
    with pytest.raises(BadSetting, match="pictures"):
        preparation_of({name: settings[name] for name in settings if name not in wrong})


@pytest.mark.parametrize(
    "square",
    [
        {"side": 0, "least": 1, "colour": [1, 2, 3]},
        {"side": 1 << 20, "least": 1, "colour": [1, 2, 3]},
        {"side": 9, "least": 10, "colour": [1, 2, 3]},
        {"side": 9, "least": 1, "colour": [1, 2, 256]},
        {"side": 9, "least": 1, "colour": [1, 2]},
        {"side": 9, "least": 1},
        3,
    ],
)
def test_a_bundle_that_says_an_impossible_square_is_refused(tmp_path, square):
    CLIPImageProcessorPil().save_pretrained(tmp_path)
    settings = read_pictures(tmp_path)
    assert settings is not None
    with pytest.raises(BadSetting, match="pictures"):
        preparation_of(settings | {"square": square})


def test_a_square_of_another_size_than_the_methods_is_refused():
    settings = {
        "size": None, "shortest": None, "resampling": 3, "crop": None, "factor": 1.0,
        "mean": None, "deviation": None,
        "square": {"side": 9, "least": 1, "colour": [1, 2, 3]},
    }  # fmt: skip
    check_prepared(preparation_of(settings), (9, 9))
    with pytest.raises(BadSetting, match="9 x 9 of every picture"):
        check_prepared(preparation_of(settings), (8, 8))
