"""Folders of PEFT's adapters: read as PEFT does, or refused with a sentence."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_folders import change_json, random_tokens, save_folder, tiny_llama
from numpy.testing import assert_allclose, assert_array_equal
from peft_adapters import adapted_logits, convert, save_adapter
from safetensors.numpy import load_file, save_file

from kvc.compiler import AdapterSlots, export_hf
from kvc.compiler.adapters.peft import read_peft
from kvc.runtime import BadAdapter, load
from kvc.schema.adapters import GAIN, OFFSET, A, B

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LAYER = "model.layers.0.self_attn.q_proj"
NAME = f"base_model.model.{LAYER}"
A_NAME, B_NAME = f"{NAME}.lora_A.weight", f"{NAME}.lora_B.weight"
UP = "base_model.model.model.layers.0.mlp.up_proj"
HEAD = "base_model.model.lm_head"
TOKENS = random_tokens(6)


@pytest.fixture(scope="module")
def model():
    """Return a model whose biases are not zero."""
    model = tiny_llama(
        num_hidden_layers=1, attention_bias=True, tie_word_embeddings=False
    )
    with torch.no_grad():
        for layer in model.model.layers[0].self_attn.children():
            layer.bias.copy_(torch.linspace(-0.5, 0.5, len(layer.bias)))
    return model


@pytest.fixture(scope="module")
def home(tmp_path_factory, model) -> Path:
    """Return a folder with a bundle, the model's folder, and an adapter's folder."""
    home = tmp_path_factory.mktemp("peft")
    targets = ("q_proj", "k_proj", "v_proj", "o_proj")
    slots = AdapterSlots(1, rank=4, gains=True, targets=targets, whole=("lm_head",))
    bundle = export_hf(model, recipe="cpu_fp32", all_logits=True, adapters=slots)
    bundle.save(home / "m.kvc")
    save_folder(home / "model", model)
    save_adapter(model, home / "peft", target_modules=["q_proj", "v_proj"])
    return home


@pytest.fixture(scope="module")
def program(home):
    with load(home / "m.kvc") as program:
        yield program


@pytest.fixture
def bare(program):
    return program._engine.program


@pytest.fixture
def folder(home, tmp_path) -> Path:
    return shutil.copytree(home / "peft", tmp_path / "peft")


def change_tensors(folder: Path, tensors: dict, without: tuple = ()) -> Path:
    """Add tensors to an adapter's file, or replace some."""
    kept = load_file(folder / WEIGHTS)
    kept = {name: kept[name] for name in kept if name not in without}
    save_file(kept | tensors, folder / WEIGHTS)
    return folder


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    "init", ["pissa", "pissa_niter_16", "OLoRA", "corda", "loftq", "lora_ga"]
)
def test_adapters_of_a_changed_model_are_refused(bare, folder, init):
    change_json(folder / CONFIG, init_lora_weights=init)
    with pytest.raises(BadAdapter, match="path_initial_model_for_weight_conversion"):
        read_peft(folder, bare)


@pytest.mark.parametrize("init", [True, False, "gaussian", "eva", "orthogonal"])
def test_other_beginnings_are_read(bare, folder, init):
    change_json(folder / CONFIG, init_lora_weights=init)
    assert len(read_peft(folder, bare)) == 2


@pytest.mark.parametrize(
    ("name", "part", "value"),
    [
        (A_NAME, A, np.nan),
        (A_NAME, A, 1e200),
        (B_NAME, B, np.inf),
        (B_NAME, B, 1e39),
    ],
)
def test_numbers_beyond_float32_are_refused(bare, folder, name, part, value):
    content = load_file(folder / WEIGHTS)[name].astype(np.float64)
    content[0, 0] = value
    change_tensors(folder, {name: content})
    with pytest.raises(BadAdapter, match=rf"{LAYER}\.{part} has numbers that are not"):
        read_peft(folder, bare)


@pytest.mark.parametrize("changes", [{"r": 3}, {"rank_pattern": {"q_proj": 3}}])
def test_ranks_are_those_of_the_settings(bare, folder, changes):
    change_json(folder / CONFIG, **changes)
    text = r"lora_A.weight is \[4, 32\], expected \[3, 32\] of rank 3"
    with pytest.raises(BadAdapter, match=text):
        read_peft(folder, bare)


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({A_NAME: ones(4, 31)}, r"lora_A.weight is \[4, 31\], expected \[4, 32\]"),
        ({A_NAME: ones(128)}, r"is \[128\], expected \[4, 32\]"),
        ({B_NAME: ones(4, 32)}, r"lora_B.weight is \[4, 32\], expected \[32, 4\]"),
        ({B_NAME: ones()}, r"is \[\], expected \[32, 4\]"),
        ({f"{NAME}.lora_B.bias": ones(31)}, r"bias is \[31\], expected \[32\]"),
        ({f"{NAME}.base_layer.bias": ones(1)}, r"bias is \[1\], expected \[32\]"),
        (
            {f"{NAME}.lora_magnitude_vector": ones(2, 16)},
            r"vector is \[2, 16\], expected \[32\]",
        ),
        ({f"{HEAD}.weight": ones(32, 32)}, r"lm_head.weight is \[32, 32\], expected"),
        ({f"{NAME}.weight": ones(32, 32)}, "a whole matrix of .*q_proj, and others"),
        ({f"{HEAD}.lora_A.weight": ones(4, 32)}, "only one of the matrices"),
        ({f"{NAME}.lora_A.default.weight": ones(4, 32)}, "are the same part"),
        ({A_NAME: np.ones((4, 32), np.int32)}, "is I32, expected floats"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(bare, folder, tensors, text):
    change_tensors(folder, tensors)
    with pytest.raises(BadAdapter, match=text):
        read_peft(folder, bare)


def test_each_kind_of_slot_takes_its_matrices(bare, folder):
    change_tensors(folder, {f"{HEAD}.lora_A.weight": ones(4, 32)})
    change_tensors(folder, {f"{HEAD}.lora_B.weight": ones(96, 4)})
    with pytest.raises(BadAdapter, match=r"take a whole matrix; .* without whole="):
        read_peft(folder, bare)
    whole = {f"{NAME}.weight": ones(32, 32)}
    change_tensors(
        folder, whole, (A_NAME, B_NAME, *(f"{HEAD}.lora_{n}.weight" for n in "AB"))
    )
    with pytest.raises(BadAdapter, match=r"matrices of low rank; .*whole=NAME"):
        read_peft(folder, bare)


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 0.5},
        {"r": 4.0},
        {"r": True},
        {"r": -1},
        {"rank_pattern": {"q_proj": 2.5}},
        {"rank_pattern": [1]},
        {"lora_alpha": True},
        {"lora_alpha": -1},
        {"lora_alpha": 10**400},
        {"lora_alpha": float("inf")},
        {"lora_alpha": float("nan")},
        {"alpha_pattern": {"q_proj": float("inf")}},
    ],
)
def test_wrong_ranks_and_alphas_are_refused(bare, folder, changes):
    change_json(folder / CONFIG, **changes)
    with pytest.raises(BadAdapter, match="has wrong ranks or alphas"):
        read_peft(folder, bare)


def test_settings_nested_deep_are_refused(bare, folder):
    (folder / CONFIG).write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(BadAdapter, match="nested too deep"):
        read_peft(folder, bare)


def test_a_trained_bias_alone_computes_what_peft_does(model, home, program, tmp_path):
    folder = tmp_path / "peft"
    save_adapter(model, folder, target_modules=["q_proj"], bias="all")
    with pytest.raises(BadAdapter, match="give its folder, with --model"):
        read_peft(folder, program._engine.program)
    program.adapters.load(convert(folder, program, tmp_path / "a.kva", home / "model"))
    with program.session(adapter="a") as session:
        found = session.prefill_all(TOKENS)
    program.adapters.free("a")
    wanted = adapted_logits(model, folder, TOKENS)
    assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    parts = read_peft(folder, program._engine.program, home / "model")
    alone = parts["model.layers.0.self_attn.k_proj"]
    assert len(alone[A]) == len(alone[B]) == 1
    assert not alone[B].any()
    assert (alone[GAIN] == 1).all()
    assert alone[OFFSET].any()


@pytest.mark.parametrize("shape", [(32,), (1, 32), (32, 1)])
def test_magnitudes_may_have_an_axis_more(bare, home, folder, shape):
    change_tensors(folder, {f"{NAME}.lora_magnitude_vector.default": ones(*shape)})
    found = read_peft(folder, bare, home / "model")[LAYER]
    assert found[GAIN].shape == (32,)


def test_weights_of_another_model_are_refused(bare, folder, tmp_path):
    save_folder(tmp_path / "other", tiny_llama(hidden_size=64))
    change_tensors(folder, {f"{NAME}.lora_magnitude_vector": ones(32)})
    with pytest.raises(BadAdapter, match=r"expected floats \[32, 32\]"):
        read_peft(folder, bare, tmp_path / "other")


def test_names_of_older_files_are_read(bare, home, folder):
    wanted = read_peft(folder, bare)
    old = {
        name.replace(".weight", ".default.weight"): content
        for name, content in load_file(folder / WEIGHTS).items()
    }
    head = {f"{HEAD}.modules_to_save.default.weight": ones(64, 32)}
    save_file(old | head, folder / WEIGHTS)
    found = read_peft(folder, bare)
    assert (found.pop("lm_head")[B] == 1).all()
    assert found.keys() == wanted.keys()
    assert_array_equal(found[LAYER][B], wanted[LAYER][B])


def test_layers_that_add_nothing_need_no_slots(bare, folder):
    wanted = read_peft(folder, bare)
    zeros = {f"{UP}.lora_A.weight": ones(4, 32), f"{UP}.lora_B.weight": 0 * ones(48, 4)}
    change_tensors(folder, zeros)
    assert read_peft(folder, bare).keys() == wanted.keys()
    change_tensors(folder, {f"{UP}.lora_B.weight": ones(48, 4)})
    with pytest.raises(BadAdapter, match=r"no slots for .*up_proj; compile with these"):
        read_peft(folder, bare)
    change_tensors(folder, zeros | {f"{UP}.lora_A.weight": np.nan * ones(4, 32)})
    with pytest.raises(BadAdapter, match="an unused vision layer, cannot have slots"):
        read_peft(folder, bare)
    save_file(zeros, folder / WEIGHTS)
    with pytest.raises(BadAdapter, match="it changes nothing"):
        read_peft(folder, bare)
