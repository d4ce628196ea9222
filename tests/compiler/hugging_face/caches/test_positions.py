"""Which number a model gives the first token, and what it is refused for."""

import pytest
import torch
from daily import RARELY, only
from hf_folders import tiny_llama
from hf_models import RUNNING, build
from transformers import GPT2LMHeadModel, LlamaForCausalLM
from transformers.models.gpt2.modeling_gpt2 import GPT2Config

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.export import _probed
from kvc.compiler.hugging_face.reading import inputs
from kvc.compiler.hugging_face.replacing import using_kvc
from kvc.schema.errors import BadModelSetting, UnsupportedModel


def first(model):
    with using_kvc(model):
        return _probed(model)[1]


ROBERTA = ["roberta", "camembert", "data2vec-text", "roberta-prelayernorm",
           "xlm-roberta", "xlm-roberta-xl"]  # fmt: skip


@only(name=["roberta", "data2vec-text"])
@pytest.mark.parametrize("name", ROBERTA)
def test_a_model_that_counts_from_behind_its_padding_is_given_these_numbers(name):
    assert first(build(name, shallow=True)) == 2


# Rotary positions, learned ones with an offset inside, sines, and a mask that is given.
@pytest.mark.parametrize("name", ["llama", "opt", "xglm", "ctrl", "bloom", "biogpt"])
def test_a_model_that_counts_from_0_is_given_that(name):
    assert first(build(name, shallow=True)) == 0


@RARELY
@pytest.mark.parametrize("name", RUNNING)
def test_every_architecture_counts_from_where_it_is_said_to(name):
    assert first(build(name)) == (2 if name in ROBERTA else 0)


class Later(GPT2LMHeadModel):
    """Counts from 5 where it is given nothing, in int32."""

    def forward(self, input_ids=None, position_ids=None, **others):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None].int() + 5
        return super().forward(input_ids, position_ids=position_ids, **others)


class Doubled(LlamaForCausalLM):
    """Counts in steps of two where it is given nothing."""

    def forward(self, input_ids=None, position_ids=None, **others):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None] * 2
        return super().forward(input_ids, position_ids=position_ids, **others)


class Forgetful(GPT2LMHeadModel):
    """Counts each call from 0, and takes no positions."""

    def forward(self, input_ids=None, **others):
        places = torch.arange(input_ids.shape[1])[None]
        return super().forward(input_ids, position_ids=places, **others)


class Scaled(GPT2LMHeadModel):
    """Does something else for a cache that it is told to use."""

    def forward(self, input_ids=None, position_ids=None, use_cache=None, **others):
        scale = torch.full((1,), 1.0 if use_cache else 2.0)
        embeds = self.get_input_embeddings()(input_ids) * scale
        given = {"inputs_embeds": embeds, "position_ids": position_ids}
        return super().forward(use_cache=True, **given, **others)


class Hidden(GPT2LMHeadModel):
    """Forgets all tokens but those that it is told to put into a cache."""

    def forward(self, input_ids=None, position_ids=None, use_cache=None, **others):
        hidden = torch.full((1, 1, 1), not use_cache)
        embeds = self.get_input_embeddings()(input_ids).masked_fill(hidden, 0)
        given = {"inputs_embeds": embeds, "position_ids": position_ids}
        return super().forward(use_cache=True, **given, **others)


def gpt2(kind):
    return kind(GPT2Config(vocab_size=16, n_embd=8, n_layer=1, n_head=2)).eval()


class Turned(LlamaForCausalLM):
    """Counts from 1 where it is given nothing; what is seen of it are rotations."""

    def forward(self, input_ids=None, position_ids=None, **others):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None] + 1
        return super().forward(input_ids, position_ids=position_ids, **others)


def test_a_number_that_only_its_sines_show_is_found():
    assert first(Turned(tiny_llama(num_hidden_layers=1).config).eval()) == 1


@RARELY
def test_any_constant_is_found():
    assert first(gpt2(Later)) == 5


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            Forgetful,
            r"given no position_ids.*takes none.*\[0, 1, \.\.\.\], not \[4, 5, ",
        ),
        (Scaled, r"aten::mul has \[1\], not \[2\]"),
        (Hidden, r"aten::masked_fill has \[0\], not \[1\]"),
    ],
)
def test_a_model_that_computes_something_else_is_refused_with_both_values(kind, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        export_hf(gpt2(kind))


def test_rotations_by_other_positions_are_refused():
    model = Doubled(tiny_llama(num_hidden_layers=1).config).eval()
    with pytest.raises(UnsupportedModel, match=r"given position_ids 4 to 10.*constant"):
        export_hf(model)


# These know of distances, or of the order of tokens, alone.
WITHOUT = ["bloom", "bloom, 4 heads", "falcon, ALiBi", "mpt", "falcon_mamba",
           "granitemoehybrid", "jamba", "kimi_linear", "mamba", "mamba2", "nemotron_h",
           "rwkv", "zamba", "zamba2"]  # fmt: skip


@RARELY
@pytest.mark.parametrize("name", RUNNING)
def test_wrong_positions_would_be_noticed_in_every_architecture(name, monkeypatch):
    right = inputs._positions
    monkeypatch.setattr(inputs, "_positions", lambda *call: right(*call) * 2)
    if name in WITHOUT:
        assert first(build(name)) == 0
        return
    with pytest.raises(UnsupportedModel, match="position_ids"):
        first(build(name))


def test_positions_below_the_first_hold_no_token():
    model = build("roberta", shallow=True)
    assert model.config.max_position_embeddings == 130
    with pytest.raises(BadModelSetting, match=r"max_length.*at most 128"):
        export_hf(model, cache=CacheConfig(129))


def test_an_encoder_is_told_how_to_be_a_decoder():
    model = build("roberta", shallow=True)
    model.config.is_decoder = False
    with pytest.raises(UnsupportedModel, match="is_decoder=True"):
        export_hf(model)
