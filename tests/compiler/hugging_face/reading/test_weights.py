"""Tensors that transformers renames or makes of others when it loads a model."""

from math import prod

import pytest
import torch
from hf_folders import SIZES, save_folder, tiny_llama
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from kvc.compiler import Checkpoint
from kvc.compiler.checkpoints.filled import attached
from kvc.compiler.hugging_face.folder import open_folder
from kvc.compiler.hugging_face.reading.weights import ConvertedTensor, match
from kvc.compiler.weights.weight_reader import read
from kvc.schema.errors import BadModelFolder, CheckpointMismatch

EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 1}
UP = "model.layers.0.mlp.experts.gate_up_proj"


def mixtral():
    torch.manual_seed(0)
    return MixtralForCausalLM(
        MixtralConfig(**(SIZES | EXPERTS | {"num_local_experts": 3}))
    )


def qwen3_moe():
    torch.manual_seed(0)
    sizes = {"num_experts": 3, "moe_intermediate_size": 24, "head_dim": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**(SIZES | EXPERTS | sizes)))


@pytest.fixture(params=[mixtral, qwen3_moe, tiny_llama])
def folder(tmp_path, request):
    return save_folder(tmp_path / "model", request.param())


def test_every_parameter_is_what_transformers_loads(folder):
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = dict(open_folder(folder).model.named_parameters())
    for name, parameter in loaded.named_parameters():
        source = attached(ours[name])
        assert torch.equal(read(source), parameter), name


def converted(folder):
    model = open_folder(folder).model
    return match(model, Checkpoint(folder).tensors)[UP]


@pytest.mark.parametrize("step", [1, 7, 1000, 100_000])
def test_experts_are_stacked_a_part_at_a_time(tmp_path, step):
    model = mixtral()
    up = converted(save_folder(tmp_path / "model", model))
    assert isinstance(up, ConvertedTensor)
    assert up.conversion.by_part
    count = prod(up.shape)
    begins = range(0, count, step if step > 1 else 997)
    parts = [up.elements(b, min(count, b + begins.step)) for b in begins]
    whole = torch.cat(parts).view(up.shape)
    expected = dict(model.named_parameters())[UP]
    assert torch.equal(whole, expected)


def test_what_was_made_is_let_go_after_its_last_element(tmp_path):
    up = converted(save_folder(tmp_path / "model", mixtral()))
    up.elements(0, 5)
    assert up.conversion._kept[1]
    up.elements(5, prod(up.shape))
    assert not up.conversion._kept[1]


def test_an_expert_of_another_size_is_refused_by_name(tmp_path):
    folder = save_folder(tmp_path / "model", mixtral())
    file = folder / "model.safetensors"
    tensors = load_file(file)
    (name,) = [name for name in tensors if ".experts.1." in name and "w1" in name]
    tensors[name] = torch.ones(40, 32)
    save_file(tensors, file)
    with pytest.raises(BadModelFolder, match=r"experts\.gate_up_proj cannot be made"):
        open_folder(folder)


def test_a_missing_expert_is_refused_by_name(tmp_path):
    folder = save_folder(tmp_path / "model", mixtral())
    file = folder / "model.safetensors"
    tensors = load_file(file)
    kept = {name: t for name, t in tensors.items() if ".experts.2." not in name}
    save_file(kept, file)
    with pytest.raises(CheckpointMismatch, match=r"gate_up_proj.*: \[3, 96, 32\]"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("make", "name", "ones"),
    [(tiny_llama, "norm.weight", (32,)), (mixtral, UP, (3, 96, 32))],
)
def test_two_tensors_that_become_one_are_refused(tmp_path, make, name, ones):
    folder = save_folder(tmp_path / "model", make())
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: torch.ones(ones)}, file)
    with pytest.raises(BadModelFolder, match=r"both .* and .* become model\.") as found:
        open_folder(folder)
    assert name in str(found.value)
