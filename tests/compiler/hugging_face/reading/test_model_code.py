"""What a model's code raises while kvc looks at it is one sentence with its line."""

import json
import re
from pathlib import Path

import pytest
import torch
from hf_models import VOCAB, build
from seeing_models import MODELS
from seeing_models import build as build_seeing
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.reading.model_code import (
    UNNAMED,
    model_code,
    traced_code,
)
from kvc.schema.errors import (
    BadModelFolder,
    CaptureError,
    SizesRefused,
    UnsupportedModel,
)

LINE = r"\btest_model_code:\d+ "
CONFIG = LlamaConfig(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
    num_attention_heads=2, max_position_embeddings=64,
)  # fmt: skip


class Indexing(LlamaForCausalLM):
    def forward(self, input_ids=None, past_key_values=None, **given):
        return [][input_ids.shape[1]]


class Caching(LlamaForCausalLM):
    def forward(self, input_ids=None, past_key_values=None, **given):
        if past_key_values is not None:
            raise KeyError("a cache")
        return super().forward(input_ids=input_ids, **given)


class AskingItsCache(LlamaForCausalLM):
    def forward(self, input_ids=None, past_key_values=None, **given):
        return past_key_values.rnn_state


class AskingForValues(LlamaForCausalLM):
    def forward(self, input_ids=None, past_key_values=None, **given):
        return int(self.lm_head.weight.sum())


class LookingIn(LlamaForCausalLM):
    def forward(self, input_ids=None, past_key_values=None, **given):
        return past_key_values.layers[0].keys.shape


class LookingInLater(LlamaForCausalLM):
    def forward(self, input_ids=None, past_key_values=None, **given):
        kept = past_key_values.layers
        if len(kept) and kept[0].is_initialized:
            torch.cat([kept[0].keys, kept[0].values])
        return super().forward(
            input_ids=input_ids, past_key_values=past_key_values, **given
        )


class AskingNone(LlamaForCausalLM):
    def forward(self, input_ids=None, attention_mask=None, **given):
        return attention_mask.shape


class NeedingMore(LlamaForCausalLM):
    def forward(self, pixel_values, input_ids=None, past_key_values=None, **given):
        return None


class Speaking(LlamaForCausalLM):
    def forward(self, input_ids=None, past_key_values=None, **given):
        raise ValueError("a line\n  and another\n" * 100)


class Positions(LlamaForCausalLM):
    def forward(self, input_ids=None, past_key_values=None, **given):
        if input_ids.shape[1] > 2:
            raise KeyError("eleven tokens")
        return super().forward(
            input_ids=input_ids, past_key_values=past_key_values, **given
        )


class Long(LlamaForCausalLM):
    def forward(self, input_ids=None, past_key_values=None, **given):
        made = super().forward(
            input_ids=input_ids, past_key_values=past_key_values, **given
        )
        if input_ids.shape[1] > 20:
            made.logits = made.logits * 2
        return made


def refusal(kind: type[LlamaForCausalLM]) -> str:
    with pytest.raises(UnsupportedModel) as caught:
        export_hf(kind(CONFIG).eval(), cache=CacheConfig(64))
    assert caught.value.model == kind.__name__
    assert "\n" not in caught.value.reason
    return caught.value.reason


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            Indexing,
            LINE + r"fails when it is run on two tokens .*\(it asks for an element",
        ),
        (Indexing, "it does so without anything of kvc's, too: its configuration does"),
        (
            Caching,
            "asks for 'a cache', which is not there.; kvc gives it caches, attention",
        ),
        (AskingItsCache, LINE + "asks its cache for rnn_state, and kvc's caches hold"),
        (LookingIn, LINE + "looks into its cache for the content of a layer, and"),
        (LookingInLater, LINE + "looks into its cache for keys and values of a layer"),
        (AskingNone, LINE + r"fails .*\(it asks for shape of None, so something that"),
        (AskingForValues, LINE + "asks for values of tensors"),
        (NeedingMore, "its code needs pixel_values, which kvc does not give it"),
        (Speaking, r"\(ValueError: a line and another a line.{1,160}\.\.\.\)"),
        (Positions, LINE + "fails when it is run on 11 tokens alone .*'eleven tok"),
        (Long, "some lengths of a text .* for fewer, with .*or --max-length 20$"),
    ],
)
def test_what_a_models_code_raises_is_one_sentence_with_its_line(kind, says):
    assert re.search(says, refusal(kind))


def test_a_layer_that_computes_with_its_mask_is_named(monkeypatch):
    original = LlamaAttention.forward

    def adding(self, hidden_states, *args, attention_mask=None, **given):
        given["attention_mask"] = attention_mask + 1
        return original(self, hidden_states, *args, **given)

    monkeypatch.setattr(LlamaAttention, "forward", adding)
    says = LINE + r"computes with an attention mask \(add\)"
    assert re.search(says, refusal(LlamaForCausalLM))


def test_pictures_that_fail_are_told_with_the_way_without_them(monkeypatch):
    model = build_seeing(*MODELS["llava"])

    def failing(pixel_values, **given):
        return pixel_values.view(0, 7)

    monkeypatch.setattr(model, "get_image_features", failing)
    says = LINE + r"fails when it is run on a picture of 32 x 32 .*--no-pictures, pict"
    with pytest.raises(UnsupportedModel, match=says):
        export_hf(model, cache=CacheConfig(64))


def test_a_configuration_that_makes_no_model_is_one_sentence(tmp_path: Path):
    config = CONFIG.to_dict() | {"hidden_act": "no such thing", "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    build("llama").save_pretrained(tmp_path / "weights")
    weights = tmp_path / "weights" / "model.safetensors"
    weights.rename(tmp_path / "model.safetensors")
    with pytest.raises(BadModelFolder) as caught:
        export_hf(tmp_path)
    assert re.search(
        r"makes no model: transformers\.models\.llama\.", str(caught.value)
    )
    assert "\n" not in str(caught.value)


def test_a_bound_that_torch_finds_is_told_as_an_option():
    said = "Suggested fixes: heard = Dim('heard', max=512)"
    error = SizesRefused(method="encode", place=" at a.b:3", reason="no", advice=said)
    says = r"a\.b:3 computes .*; compile it for fewer, .*--max-encoder-length 512$"
    with pytest.raises(UnsupportedModel, match=says), traced_code(build("llama")):
        raise error


def test_a_length_that_becomes_a_constant_is_told_as_one():
    said = "but your code specialized it to be a constant (2). Suggested fixes: seq = 2"
    error = SizesRefused(method="embed", place="", reason="no", advice=said)
    says = (
        r"its code takes the number of tokens for a constant \(2, in the run .* embed"
    )
    with pytest.raises(UnsupportedModel, match=says), traced_code(build("llama")):
        raise error


def test_what_a_trace_raises_is_told_and_kvcs_own_words_are_kept():
    error = CaptureError(
        method="encode", place=" at a:1", reason="it raises KeyError: 3"
    )
    says = r"a:1 fails when encode is traced .* \(it asks for 3, .*\); kvc gives it"
    with pytest.raises(UnsupportedModel, match=says), traced_code(build("llama")):
        raise error from KeyError(3)
    ours = CaptureError(method="encode", place=" at a:1", reason="it writes something")
    with pytest.raises(CaptureError) as caught, traced_code(build("llama")):
        raise ours
    assert caught.value is ours


def test_what_a_module_prints_of_itself_is_left_out():
    model = build("llama")
    says = r"\(ValueError: no cache in LlamaForCausalLM\)"
    with pytest.raises(UnsupportedModel, match=says), model_code(model, "it is run"):
        raise ValueError(f"no cache in {model} without a decoder")


def test_what_knows_no_name_gets_the_models():
    error = UnsupportedModel(model=UNNAMED, reason="its mask is odd")
    says = "^LlamaForCausalLM is not supported: its mask is odd; or so$"
    model = build("llama")
    with pytest.raises(UnsupportedModel, match=says), model_code(model, "", "; or so"):
        raise error
