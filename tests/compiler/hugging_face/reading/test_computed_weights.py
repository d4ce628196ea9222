"""Tables that a model computes where its folder lacks them."""

import pytest
import torch
from seq2seq_models import build

from kvc.compiler.checkpoints import Checkpoint, empty_parameters
from kvc.compiler.hugging_face.folder import open_folder
from kvc.compiler.hugging_face.reading.weights import computed
from kvc.schema.errors import CheckpointMismatch

TABLES = [f"model.{part}.embed_positions.weight" for part in ("encoder", "decoder")]


@pytest.fixture
def folder(tmp_path):
    build("marian").save_pretrained(tmp_path)
    return tmp_path


def test_sines_are_those_that_the_model_makes(folder):
    assert not set(TABLES) & Checkpoint(folder).tensors.keys()
    model = build("marian")
    with empty_parameters():
        empty = type(model)(model.config)
    state = torch.get_rng_state()
    made = computed(empty, {}, str(folder))
    assert torch.equal(torch.get_rng_state(), state)
    for name in TABLES:
        expected, found = model.get_parameter(name), made[name]
        assert (found.shape, found.dtype) == (tuple(expected.shape), torch.float32)
        values = found.elements(0, expected.numel())
        assert torch.equal(values.view(expected.shape), expected)
        assert empty.get_parameter(name).is_meta
    bias = made["final_logits_bias"]
    assert not bias.elements(0, 97).any()


def test_a_folder_without_them_opens(folder):
    model = open_folder(folder).model
    assert set(TABLES) <= {name for name, _ in model.named_parameters()}


def test_a_weight_that_is_trained_is_not_computed(tmp_path):
    model = build("bart")
    model._keys_to_ignore_on_load_missing = ["layernorm_embedding"]
    assert not computed(model, {}, "a").keys() - {"final_logits_bias"}
    kept = {n: t for n, t in model.state_dict().items() if "fc1" not in n}
    model.save_pretrained(tmp_path, state_dict=kept)
    with pytest.raises(CheckpointMismatch, match="fc1"):
        open_folder(tmp_path)
