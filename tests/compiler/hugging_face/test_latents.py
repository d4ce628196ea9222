"""Queries and results in the space of latents."""

import torch
from hf_models import build

from kvc.compiler.hugging_face.latents import (
    absorbed,
    latent_layers,
    unabsorbed,
    unexpanded,
)


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
