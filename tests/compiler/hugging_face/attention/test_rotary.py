"""Rotary frequencies that move with the length of a text."""

import warnings

import pytest
import torch
from hf_models import build

from kvc.compiler.hugging_face.attention.rotary import (
    FrequenciesFixed,
    held_still,
    longest_short,
    warn_of_frequencies,
)
from kvc.compiler.hugging_face.reading.settings import CacheConfig, find_sizes
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


def test_frequencies_that_move_with_each_length_are_refused():
    refused = pytest.raises(UnsupportedModel, match="max_length=128")
    with refused, held_still(build("llama, dynamic rope"), 129):
        pass


def test_a_longer_cache_has_the_frequencies_of_long_texts_for_all_positions():
    model = build("phi3")
    rotary, x, places = model.model.rotary_emb, torch.zeros(1), torch.arange(65)[None]
    long, _ = rotary(x, places)
    with held_still(model, 65):
        for count in (1, 3, 65):
            found, _ = rotary(x, places[:, :count])
            assert torch.equal(found, long[:, :count])
    short, _ = rotary(x, places[:, :3])
    assert not torch.allclose(short, long[:, :3])


def test_nobody_is_told_of_frequencies_that_were_asked_for_or_never_move():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_frequencies(build("phi3"), 64, 64)
        warn_of_frequencies(build("llama, yarn"), 128, None)
        warn_of_frequencies(build("llama, dynamic rope"), 128, None)


def test_the_shorter_frequencies_are_taken_unless_a_longer_text_is_asked_for():
    usual = longest_short(build("phi3"))
    config = build("phi3").config
    sizes = find_sizes(CacheConfig(), 16, config, {"max_length": 100}, usual=usual)
    assert sizes.length == 64
    with pytest.warns(
        FrequenciesFixed, match=r"up to 64 tokens; --max-length N .* 64 "
    ):
        warn_of_frequencies(build("phi3"), sizes.length, None)
    sizes = find_sizes(CacheConfig(65), 16, config, {}, usual=usual)
    assert sizes.length == 65
    with pytest.warns(FrequenciesFixed, match="longer texts, from the first token on"):
        warn_of_frequencies(build("phi3"), sizes.length, 65)


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
