"""Layers of experts as transformers' own code computes them."""

import pytest
import torch
from hf_models import build
from torch import nn

from kvc.compiler.hugging_face.attention.experts import own_experts, run_experts
from kvc.schema.errors import UnsupportedModel

NAMES = ["mixtral", "qwen3_moe", "gpt_oss", "granitemoe", "glm4_moe", "phimoe"]


def layer_of_experts(model: nn.Module) -> nn.Module:
    (*_, last) = (
        m
        for m in model.modules()
        if hasattr(m, "down_proj") and hasattr(m, "is_transposed")
    )
    return last


@pytest.mark.parametrize("name", NAMES)
def test_experts_equal_their_eager_loop(name):
    model = build(name)
    layer = layer_of_experts(model)
    model.set_experts_implementation("eager")
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(9, 64, generator=generator)
    weights, chosen = torch.rand(9, 6, generator=generator).topk(2, dim=-1)
    with torch.no_grad():
        wanted = layer(states, chosen, weights)
        with own_experts(model):
            got = layer(states, chosen, weights)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_experts_that_return_what_they_are_given_do_so():
    model = build("longcat_flash")
    layer = model.model.layers[0].mlp.experts
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(9, 64, generator=generator)
    weights, chosen = torch.rand(9, 8, generator=generator).topk(3, dim=-1)
    assert (chosen >= layer.num_routed_experts).any()
    with torch.no_grad():
        wanted = layer(states, chosen, weights)
        with own_experts(model):
            got = layer(states, chosen, weights)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_the_setting_of_before_comes_back():
    model = build("mixtral")
    model.set_experts_implementation("batched_mm")
    with own_experts(model):
        assert model.config._experts_implementation == "kvc"
    assert model.config._experts_implementation == "batched_mm"


def test_a_model_without_experts_is_left_alone():
    with own_experts(build("llama")):
        pass


def test_experts_of_several_processes_are_refused():
    layer = layer_of_experts(build("mixtral"))
    layer._is_expert_parallel = True
    with pytest.raises(UnsupportedModel, match="several processes"):
        run_experts(
            layer, torch.zeros(1, 64), torch.zeros(1, 2).long(), torch.ones(1, 2)
        )
