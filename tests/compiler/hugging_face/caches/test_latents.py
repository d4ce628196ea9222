"""Queries and results in the space of latents."""

import pytest
import torch
from hf_models import build
from torch import nn

from kvc.compiler.hugging_face.caches.latents import (
    absorbed,
    latent_layers,
    unabsorbed,
    unexpanded,
)
from kvc.schema.errors import UnsupportedModel


class Adapted(nn.Module):
    """Adds to a linear layer, and has its weight, as peft's layers do."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear, self.more = linear, nn.Linear(16, linear.out_features, False)

    @property
    def weight(self) -> torch.Tensor:
        return self.linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.more(x)


def adapt(attention):
    attention.kv_b_proj = Adapted(attention.kv_b_proj)


def shift(attention):
    linear = attention.kv_b_proj
    linear.bias = nn.Parameter(torch.ones(linear.out_features))


def hook(attention):
    attention.kv_b_proj.register_forward_hook(lambda _, given, made: made * 2)


def hook_before(attention):
    attention.kv_b_proj.register_forward_pre_hook(lambda _, given: given[0] * 2)


def replace_forward(attention):
    attention.kv_b_proj.forward = lambda x: x


def expand_otherwise(attention):
    class Own(type(attention)):
        def expand_kv(self, latent, turning):
            return super().expand_kv(latent * 2, turning)

    attention.__class__ = Own


def expand_one_otherwise(attention):
    attention.expand_kv = lambda latent, turning: (latent, turning)


def test_scores_and_values_are_those_of_expanded_latents():
    model = build("deepseek_v3", shallow=True)
    (attention,) = (layer.self_attn for layer in model.model.layers)
    torch.manual_seed(0)
    query, latent, shared = (
        torch.randn(2, *dims) for dims in ((4, 5, 24), (1, 7, 16), (1, 7, 8))
    )
    key, value = attention.expand_kv(latent, shared)
    whole = torch.cat([latent, shared], dim=-1)
    scores = absorbed(attention, query) @ whole.transpose(2, 3)
    torch.testing.assert_close(scores, query @ key.transpose(2, 3))
    torch.testing.assert_close(
        unabsorbed(attention, scores @ latent), scores @ value, rtol=1e-4, atol=1e-4
    )


def test_modules_hand_latents_on_and_change_back():
    model = build("deepseek_v3", shallow=True)
    attention = model.model.layers[0].self_attn
    before, latent = dict(vars(attention)), torch.zeros(1, 1, 2, 16)
    with unexpanded(model):
        found, _ = attention.expand_kv(latent, torch.zeros(1, 1, 2, 8))
    assert found is latent
    assert dict(vars(attention)) == before


def test_only_caches_of_latents_are_such():
    assert latent_layers(build("deepseek_v3")) == {0, 1}
    assert latent_layers(build("llama")) == set()


@pytest.mark.parametrize(
    "change",
    [
        *(adapt, shift, hook, hook_before, replace_forward),
        *(expand_otherwise, expand_one_otherwise),
    ],
)
def test_what_is_not_in_the_matrix_is_refused(change):
    model = build("deepseek_v3", shallow=True)
    change(model.model.layers[0].self_attn)
    with (
        pytest.raises(UnsupportedModel, match="more than the matrix of kv_b_proj"),
        unexpanded(model),
    ):
        pass
