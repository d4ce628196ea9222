"""Rotary frequencies that move with the length of a text."""

import pytest
import torch
from hf_models import build

from kvc.compiler.hugging_face.rotary import held_still
from kvc.schema.errors import UnsupportedModel


def frequencies(model):
    return model.model.rotary_emb.inv_freq.clone()


@pytest.mark.parametrize(("name", "most"), [("phi3", 64), ("llama, dynamic rope", 128)])
def test_the_frequencies_of_short_texts_are_used(name, most):
    model = build(name)
    rotary, x = model.model.rotary_emb, torch.zeros(1)
    short = rotary.original_inv_freq.clone()
    rotary(x, torch.arange(2 * most)[None])  # somebody ran it on a long text before
    moved, kind = frequencies(model), rotary.rope_type
    assert not torch.equal(moved, short)
    with held_still(model, most):
        wanted = torch.outer(torch.arange(2.0 * most), short).cos()
        cos, _ = rotary(x, torch.arange(2 * most)[None])
        scaled = cos[0, :, : len(short)] / rotary.attention_scaling
        torch.testing.assert_close(scaled, wanted)
    assert torch.equal(frequencies(model), moved)
    assert rotary.rope_type == kind


@pytest.mark.parametrize(("name", "most"), [("phi3", 64), ("llama, dynamic rope", 128)])
def test_texts_for_which_they_move_are_refused(name, most):
    refused = pytest.raises(UnsupportedModel, match=f"max_length={most}")
    with refused, held_still(build(name), most + 1):
        pass


def test_frequencies_that_never_move_are_left_alone():
    model = build("llama, yarn")
    kind = model.model.rotary_emb.rope_type
    with held_still(model, 10**6):
        assert model.model.rotary_emb.rope_type == kind


def test_each_kind_of_layer_may_have_moving_frequencies():
    model = build("gemma3_text")
    rotary = model.model.rotary_emb
    rotary.rope_type = {"sliding_attention": "default", "full_attention": "dynamic"}
    with held_still(model, 128):
        assert "dynamic" not in rotary.rope_type.values()
        assert rotary.rope_type["sliding_attention"] == "default"
    assert rotary.rope_type["full_attention"] == "dynamic"
    refused = pytest.raises(UnsupportedModel, match="max_length=128")
    with refused, held_still(model, 129):
        pass
