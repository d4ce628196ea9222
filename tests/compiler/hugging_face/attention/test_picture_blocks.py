"""Texts of models whose masks have blocks for pictures compile, as texts alone."""

import sys

import pytest
import torch
from transformers import Gemma4UnifiedForConditionalGeneration, masking_utils

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.attention import picture_blocks
from kvc.compiler.hugging_face.attention.picture_blocks import without_blocks
from kvc.compiler.hugging_face.reading.calls import Call, attending
from kvc.compiler.hugging_face.reading.left_out import PartLeftOut
from kvc.tools.dev.shrunken import shrunken

NONE = torch.zeros(1, dtype=torch.int64)


@pytest.fixture
def overlay(monkeypatch):
    """The function that makes masks of blocks, as a named model calls it."""

    class Model:
        __module__ = __name__

    module = sys.modules[__name__]
    monkeypatch.setattr(picture_blocks, "name_of", lambda _: "a.B")
    monkeypatch.setattr(picture_blocks, "_MODELS", {"a.B"})
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
    assert not seen(overlay, Call(NONE, NONE)).any()


def test_a_text_with_a_picture_keeps_its_blocks(overlay):
    call = Call(NONE, NONE)
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
