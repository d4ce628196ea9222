"""What queries see in a text with a picture is asked of the mask function."""

import sys

import pytest
import torch
from transformers import Gemma4UnifiedForConditionalGeneration, masking_utils

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.attention import picture_masks
from kvc.compiler.hugging_face.attention.attention_masks import MaskStandIn
from kvc.compiler.hugging_face.attention.picture_masks import (
    find_around_picture,
    without_blocks,
)
from kvc.compiler.hugging_face.reading.calls import ModelCall, attending
from kvc.compiler.hugging_face.reading.left_out import PartLeftOut
from kvc.schema.errors import UnsupportedModel
from kvc.tools.dev.shrunken import shrunken

PICTURE, COUNT = range(3, 9), 20


def is_of_picture(places):
    """As a table of the text's own length, which cannot be asked beyond it."""
    table = torch.zeros(COUNT, dtype=torch.bool)
    table[PICTURE.start : PICTURE.stop] = True
    return table[places]


def causal(batch, head, query, key):
    return key <= query


def joined(batch, head, query, key):
    return (key <= query) | (is_of_picture(query) & is_of_picture(key))


def within(window, other):
    """Return a mask of what another one lets see, as far as a window reaches back."""

    def mask(batch, head, query, key):
        return (key > query - window) & other(batch, head, query, key)

    return mask


@pytest.mark.parametrize(
    ("mask", "sight"),
    [
        (causal, MaskStandIn(None)),
        (joined, MaskStandIn(None, joined=True)),
        (within(4, causal), MaskStandIn(4)),
        (within(4, joined), MaskStandIn(4, joined=True)),
        (within(7, joined), MaskStandIn(7, joined=True)),
    ],
)
def test_windows_and_joined_places_are_found(mask, sight):
    assert find_around_picture(mask, PICTURE, COUNT, "it") == sight


def sees_all(batch, head, query, key):
    return key >= 0


def sees_the_picture_from_before(batch, head, query, key):
    return (key <= query) | is_of_picture(key)


def sees_half_of_the_picture(batch, head, query, key):
    return (key <= query) | (is_of_picture(query) & is_of_picture(key) & (key < 6))


def is_joined_with_what_follows(batch, head, query, key):
    return (key <= query) | (is_of_picture(query) & (key <= PICTURE.stop))


def sees_nothing(batch, head, query, key):
    return key < 0


@pytest.mark.parametrize(
    "mask",
    [
        sees_all,
        sees_the_picture_from_before,
        sees_half_of_the_picture,
        is_joined_with_what_follows,
        sees_nothing,
        within(4, sees_the_picture_from_before),
    ],
)
def test_other_masks_are_refused(mask):
    with pytest.raises(UnsupportedModel, match="its attention mask is neither"):
        find_around_picture(mask, PICTURE, COUNT, "it")


NONE = torch.zeros(1, dtype=torch.int64)


@pytest.fixture
def overlay(monkeypatch):
    """The function that makes masks of blocks, as a named model calls it."""

    class Model:
        __module__ = __name__

    module = sys.modules[__name__]
    monkeypatch.setattr(picture_masks, "name_of", lambda _: "a.B")
    monkeypatch.setattr(picture_masks, "_MODELS", {"a.B"})
    monkeypatch.setattr(
        module, "blockwise_overlay", masking_utils.blockwise_overlay, raising=False
    )
    with without_blocks(Model()):
        yield module.blockwise_overlay
    assert module.blockwise_overlay is masking_utils.blockwise_overlay


def seen(overlay, call):
    blocks = torch.tensor([[-1, 0, 0]])
    places = torch.arange(3)
    with attending(call):
        return overlay(blocks)(0, 0, places[:, None], places[None])


def test_a_text_alone_has_no_blocks(overlay):
    assert not seen(overlay, ModelCall(NONE, NONE)).any()


def test_a_text_with_a_picture_keeps_its_blocks(overlay):
    call = ModelCall(NONE, NONE)
    call.picture = range(1, 3)
    assert int(seen(overlay, call).sum()) == 4


def test_a_model_that_makes_blocks_of_every_text_compiles_without_pictures():
    config = shrunken("gemma4_unified")
    config.text_config.num_hidden_layers = 2
    config.text_config.layer_types = ["sliding_attention", "full_attention"]
    config.text_config.sliding_window = 8
    config.text_config.max_position_embeddings = 4096
    assert config.text_config.use_bidirectional_attention == "vision"
    model = Gemma4UnifiedForConditionalGeneration(config).eval()
    with pytest.warns(PartLeftOut):
        bundle = export_hf(model, cache=CacheConfig(4096), pictures=False)
    kinds = [state.window for state in bundle.program.states if state.window]
    assert [kind.size for kind in kinds] == [8, 8]  # keys and values of one layer
