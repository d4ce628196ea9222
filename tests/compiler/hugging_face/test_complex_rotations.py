"""Rotations by pairs of real numbers are those by complex ones."""

import sys

import pytest
import torch
from hf_models import build

from kvc.compiler.hugging_face.complex_rotations import real_rotations


def rotated(model, heads_first: bool):
    """Return queries and keys as a model turns them, of five positions from 3 on."""
    torch.manual_seed(0)
    shape = (2, 4, 5, 8) if heads_first else (2, 5, 4, 16)
    query, key = torch.randn(shape), torch.randn(shape)
    factors = model.model.rotary_emb(query, torch.arange(3, 8).expand(2, -1))
    return sys.modules[type(model).__module__].apply_rotary_emb(query, key, factors)


@pytest.mark.parametrize(
    ("name", "heads_first"), [("deepseek_v2", True), ("llama4_text", False)]
)
def test_rotations_are_those_of_transformers_and_come_back(name, heads_first):
    model = build(name, shallow=True)
    theirs = rotated(model, heads_first)
    with real_rotations(model):
        assert not model.model.rotary_emb(theirs[0], torch.arange(3)).is_complex()
        ours = rotated(model, heads_first)
    torch.testing.assert_close(ours, theirs)
    assert model.model.rotary_emb(theirs[0], torch.arange(3)).is_complex()


def test_a_forward_that_was_replaced_stays():
    model = build("deepseek_v2", shallow=True)
    rotary = model.model.rotary_emb
    rotary.forward = replacement = lambda x, position_ids: x
    with real_rotations(model):
        assert rotary.forward is replacement
    assert rotary.forward is replacement
