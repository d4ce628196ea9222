"""Folders as they are published: what is read of them, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from hf_folders import (
    change_json,
    eager,
    random_tokens,
    save_folder,
    tiny_llama,
    word_tokenizer,
)
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from kvc.compiler import CacheConfig, export_hf
from kvc.compiler.hugging_face.folder import open_folder
from kvc.runtime import load
from kvc.schema.errors import (
    BadCheckpoint,
    BadFile,
    BadModelFolder,
    BadModelSetting,
    CheckpointError,
    CheckpointMismatch,
    PickleCheckpoint,
    TokenizerTooLarge,
    UnknownTask,
    UnsupportedModel,
)


@pytest.fixture
def folder(tmp_path):
    return save_folder(tmp_path / "llama", tiny_llama(num_hidden_layers=1))


def test_a_sharded_bfloat16_folder_of_a_tied_model_becomes_a_bundle(tmp_path):
    model = tiny_llama(tie_word_embeddings=True).to(torch.bfloat16)
    folder = save_folder(tmp_path / "llama", model, shard="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    export_hf(folder, cache=CacheConfig(max_length=32)).save(tmp_path / "llama.kvc")
    tokens = random_tokens(9)
    loaded = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = eager(loaded, tokens)
    with load(tmp_path / "llama.kvc") as program, program.session() as chat:
        np.testing.assert_allclose(chat.prefill(tokens), expected[:, -1], atol=2e-5)
        assert program.metadata["tokenizer"] == '"tokenizer.json"'
        assert program.metadata["architecture"] == '"llama"'
        assert json.loads(program.metadata["generation_config"]) == {
            "bos_token_id": 1,
            "eos_token_id": [2, 3],
            "temperature": 0.7,
        }
        assert sorted(program.files) == [
            "chat_template.jinja",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
        assert bytes(program.files["tokenizer.json"]) == word_tokenizer().encode()
        assert "model.layers.1.mlp.up_proj.weight" in program.data


@pytest.mark.exhaustive
def test_embeddings_that_are_tied_but_differ_are_two_tensors(tmp_path):
    folder = save_folder(tmp_path / "llama", tiny_llama(tie_word_embeddings=True))
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    output = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    save_file(tensors | {"lm_head.weight": output}, weights, {"format": "pt"})
    loaded = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert torch.equal(loaded.lm_head.weight, output)
    export_hf(folder, cache=CacheConfig(max_length=32)).save(tmp_path / "llama.kvc")
    tokens = random_tokens(9)
    expected = eager(loaded, tokens)
    with load(tmp_path / "llama.kvc") as program, program.session() as chat:
        np.testing.assert_allclose(chat.prefill(tokens), expected[:, -1], atol=2e-5)
        assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(program.data)


def test_embeddings_that_are_tied_and_saved_twice_stay_one(tmp_path):
    folder = save_folder(tmp_path / "llama", tiny_llama(tie_word_embeddings=True))
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    twice = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors | {"lm_head.weight": twice}, weights, {"format": "pt"})
    model = open_folder(folder).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_nothing_but_headers_is_read_at_opening(folder):
    model = open_folder(folder).model
    assert all(parameter.is_meta for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def rewrite(folder, rename):
    tensors = load_file(folder / "model.safetensors")
    changed = {rename(name): tensor for name, tensor in tensors.items()}
    save_file(changed, folder / "model.safetensors")


def test_names_without_the_prefix_of_the_model_are_taken(folder):
    rewrite(folder, lambda name: name.removeprefix("model."))
    assert open_folder(folder).model is not None


def test_buffers_that_older_versions_saved_are_left_out(folder):
    tensors = load_file(folder / "model.safetensors")
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(tensors | old, folder / "model.safetensors")
    assert open_folder(folder).model is not None


def test_a_tensor_that_the_model_does_not_have_is_refused_by_name(folder):
    rewrite(folder, lambda name: name.replace("up_proj", "sideways"))
    with pytest.raises(CheckpointMismatch) as caught:
        export_hf(folder)
    assert "model.layers.0.mlp.up_proj.weight: the checkpoint lacks" in str(
        caught.value
    )
    assert "model.layers.0.mlp.sideways.weight" in str(caught.value)


CAPACITIES = [
    ({}, {}, None, 128),
    ({"max_position_embeddings": 64}, {}, None, 64),
    ({}, {"cache_config": {"max_cache_len": 48}}, None, 48),
    ({}, {"max_cache_len": 40, "max_length": 100}, None, 40),
    ({}, {"max_length": 100}, None, 100),
    ({}, {"max_length": 20}, None, 128),
    ({}, {"max_length": 1000}, None, 128),
    ({}, {"max_cache_len": 40}, 96, 96),
]


@pytest.mark.parametrize(("config", "generation", "asked", "expected"), CAPACITIES)
def test_the_callers_length_comes_first_then_generation_settings_then_the_models(
    config, generation, asked, expected
):
    from transformers import LlamaConfig

    from kvc.compiler.hugging_face.reading.settings import find_sizes

    cache = CacheConfig(max_length=asked)
    model = LlamaConfig(**({"max_position_embeddings": 128} | config))
    assert find_sizes(cache, 512, model, generation).length == expected


def test_a_length_in_a_folder_that_is_no_number_is_refused(folder):
    change_json(folder / "generation_config.json", max_cache_len="long")
    with pytest.raises(BadModelSetting, match=r"max_cache_len: .* found 'long'"):
        export_hf(folder)


def broken_config(folder):
    (folder / "config.json").write_text('{"model_type": ')


def no_config(folder):
    (folder / "config.json").unlink()


def impossible_config(folder):
    change_json(folder / "config.json", num_attention_heads="many")


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def pickled(folder):
    weights = folder / "model.safetensors"
    weights.rename(folder / "pytorch_model.bin")


def cut_short(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def unknown_type(folder):
    change_json(folder / "config.json", model_type="unheard_of")


def remote_code(folder):
    auto_map = {"AutoModelForCausalLM": "modeling_own.Own"}
    change_json(folder / "config.json", model_type="own", auto_map=auto_map)
    (folder / "modeling_own.py").write_text("raise SystemExit('it was run')")


def other_model(folder):
    change_json(folder / "config.json", model_type="t5")


def no_text_model(folder):
    change_json(folder / "config.json", model_type="vit")


def quantized(folder):
    method = {"quant_method": "quip", "bits": 2}
    change_json(folder / "config.json", quantization_config=method)


def adapter_beside_weights(folder):
    described = {"peft_type": "LORA", "base_model_name_or_path": "some/model"}
    (folder / "adapter_config.json").write_text(json.dumps(described))


def adapter_alone(folder):
    adapter_beside_weights(folder)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


def broken_adapter(folder):
    (folder / "adapter_config.json").write_text("[]")


def large_tokenizer(folder):
    (folder / "tokenizer.json").write_text(word_tokenizer(70))


def broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text("[]")


def broken_settings(folder):
    (folder / "generation_config.json").write_text("{]")


def impossible_settings(folder):
    change_json(folder / "generation_config.json", top_p=2.5)


def broken_template(folder):
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m }}")


def broken_template_in_config(folder):
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "{{ 1 }}"}, {"template": "{{ }"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))


def broken_template_of_a_processor(folder):
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text('{"chat_template": "{{ }"}')


def template_of_other_bytes(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff")


def no_type(folder):
    described = json.loads((folder / "config.json").read_text())
    del described["model_type"]
    (folder / "config.json").write_text(json.dumps(described))


def no_folder(folder):
    shutil.rmtree(folder)


BROKEN = [
    (no_folder, BadModelFolder, "there is no such folder, and kvc downloads nothing"),
    (no_type, BadModelFolder, "config.json has no model_type"),
    (no_config, BadModelFolder, "cannot read config.json"),
    (broken_config, BadModelFolder, "config.json: its JSON is damaged"),
    (impossible_config, BadModelFolder, "config.json: .*num_attention_heads"),
    (broken_settings, BadModelFolder, "generation_config.json: its JSON is damaged"),
    (impossible_settings, BadModelFolder, "generation_config.json: top_p: .* got 2.5"),
    (broken_template, BadModelFolder, "template in chat_template.jinja: .*endfor"),
    (broken_template_in_config, BadModelFolder, "template in tokenizer_config.json: "),
    (broken_template_of_a_processor, BadModelFolder, "template in chat_template.json"),
    (template_of_other_bytes, BadModelFolder, "chat_template.jinja is not UTF-8"),
    (no_weights, CheckpointError, "the folder has neither model.safetensors nor"),
    (pickled, PickleCheckpoint, "pytorch_model.bin is a pickle"),
    (cut_short, BadCheckpoint, "it is cut short"),
    (unknown_type, UnsupportedModel, "transformers has no model_type 'unheard_of'"),
    (remote_code, UnsupportedModel, "needs code from the folder"),
    (other_model, CheckpointMismatch, "does not fit T5ForConditionalGeneration"),
    (no_text_model, UnknownTask, "does not determine the task of this vit"),
    (quantized, UnsupportedModel, "quantized by .quip., and kvc reads awq"),
    (
        adapter_beside_weights,
        UnsupportedModel,
        "LORA of some/model. beside the weights",
    ),
    (adapter_alone, UnsupportedModel, "LORA of some/model. and no model.*merge_and_un"),
    (broken_adapter, BadModelFolder, "adapter_config.json: "),
    (large_tokenizer, TokenizerTooLarge, "up to 69 .* those below 64"),
    (broken_tokenizer, (BadModelFolder, BadFile), "tokenizer.json"),
]


@pytest.mark.parametrize(
    ("breaking", "kind", "message"), BROKEN, ids=[b.__name__ for b, *_ in BROKEN]
)
def test_a_folder_that_cannot_be_used_is_refused(folder, breaking, kind, message):
    breaking(folder)
    with pytest.raises(kind, match=message):
        export_hf(folder)


def test_a_folder_whose_model_holds_other_sizes_is_refused(folder):
    change_json(folder / "config.json", intermediate_size=64)
    with pytest.raises(
        CheckpointMismatch, match=r"\[64, 32\] in the model, \[48, 32\]"
    ):
        export_hf(folder)


def test_code_beside_a_model_that_transformers_has_is_not_run(folder):
    remote_code(folder)
    change_json(folder / "config.json", model_type="llama")
    assert isinstance(open_folder(folder).model, LlamaForCausalLM)


GOOD = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
GOOD += (
    "{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ raise_exception('no') }}"
)


def test_a_template_is_read_and_not_run(folder):
    (folder / "chat_template.jinja").write_text(GOOD)
    assert "chat_template.jinja" in open_folder(folder).files
