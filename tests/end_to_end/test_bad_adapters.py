"""Adapters that do not fit or are damaged: a sentence, and nothing is lost."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hf_folders import change_json, random_tokens, tiny_llama
from hf_models import build
from numpy.testing import assert_array_equal
from peft_adapters import convert, save_adapter
from safetensors.numpy import load_file, save_file

from kvc.compiler import AdapterSlots, Dim, Method, compile_program, export_hf
from kvc.compiler.adapters.peft import read_peft
from kvc.runtime import BadAdapter, FileProblem, KvcError, load
from kvc.runtime.adapters.adapter_file import write_adapter
from kvc.runtime.adapters.quantized import stored_layers
from kvc.schema.adapters import A, B
from kvc.schema.errors import BadModelSetting, CheckpointError
from kvc.tools.cli import main

TOKENS = random_tokens(5)
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Return a folder with a bundle, and an adapter as folder and as file."""
    home, model = tmp_path_factory.mktemp("bad"), tiny_llama(num_hidden_layers=1)
    slots = AdapterSlots(1, rank=4, targets=("q_proj", "v_proj"))
    export_hf(model, recipe="cpu_q8", adapters=slots).save(home / "m.kvc")
    save_adapter(model, home / "peft", target_modules=["q_proj", "v_proj"])
    with load(home / "m.kvc") as program:
        convert(home / "peft", program, home / "a.kva")
    return home


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> SimpleNamespace:
    """Return a bundle with slots for DoRA, its model, and buffers before that."""
    path = tmp_path_factory.mktemp("other") / "m.kvc"
    model = tiny_llama(1, num_hidden_layers=1)
    names = [name for name, _ in model.named_buffers()]
    slots = AdapterSlots(1, rank=4, gains=True)
    export_hf(model, recipe="cpu_fp32", adapters=slots).save(path)
    return SimpleNamespace(path=path, model=model, buffers=names)


@pytest.fixture
def program(home):
    with load(home / "m.kvc") as program:
        yield program


@pytest.fixture
def folder(home, tmp_path) -> Path:
    return shutil.copytree(home / "peft", tmp_path / "peft")


def logits(program) -> np.ndarray:
    with program.session() as session:
        return session.prefill(TOKENS)


def check_refused(program, path: Path) -> str:
    """Check that a file is refused and that nothing else changes; return why."""
    before = logits(program)
    with pytest.raises((BadAdapter, FileProblem)) as caught:
        program.adapters.load(path, "x")
    assert not program.adapters
    assert_array_equal(logits(program), before)
    return str(caught.value)


def test_a_file_that_is_cut_anywhere_is_refused(program, home, tmp_path):
    raw, bad = (home / "a.kva").read_bytes(), tmp_path / "cut.kva"
    for count in (*range(0, 200, 13), len(raw) // 2, len(raw) - 33, len(raw) - 1):
        bad.write_bytes(raw[:count])
        check_refused(program, bad)
    bad.write_bytes(raw + b"more")
    check_refused(program, bad)


def test_a_file_with_a_changed_byte_is_refused(program, home, tmp_path):
    raw, bad = (home / "a.kva").read_bytes(), tmp_path / "changed.kva"
    for place in (*range(0, 60, 3), *range(60, len(raw), len(raw) // 40)):
        bad.write_bytes(raw[:place] + bytes([raw[place] ^ 0x40]) + raw[place + 1 :])
        check_refused(program, bad)


def test_other_files_are_told_apart(program, home, tmp_path):
    assert "it looks like a kvc bundle" in check_refused(program, home / "m.kvc")
    assert "a safetensors file" in check_refused(program, home / "peft" / WEIGHTS)
    assert "cannot read" in check_refused(program, tmp_path / "missing.kva")
    check_refused(program, home / "peft")


def test_an_adapter_of_another_program_is_refused(program, home, other, tmp_path):
    with load(other.path) as loaded:
        convert(home / "peft", loaded, tmp_path / "other.kva")
    text = check_refused(program, tmp_path / "other.kva")
    assert program.identity[:16] in text
    assert "make it again from its folder" in text


def parts(rank: int = 2, width: int = 32, dtype: type = np.int8) -> dict:
    made = {A: np.ones((rank, width), dtype), B: np.ones((rank, 32), dtype)}
    return made | {"adapter_factors": np.ones(rank, np.float32)}


@pytest.mark.parametrize(
    ("path", "content", "text"),
    [
        ("layers.9.q_proj", parts(), "no slots for layers.9.q_proj"),
        (None, parts(rank=5), "rank 5, the slots at most 4"),
        (None, parts(width=31), r"expected \[rank, 32\]"),
        (None, parts(dtype=np.float32), "is float32, the slots are int8"),
        (None, parts() | {"adapter_gain": np.ones(32, np.float32)}, "no slot for"),
        (None, parts() | {A: np.ones((3, 32), np.int8)}, "do not go together"),
        (None, {B: np.ones((2, 32), np.int8)}, "do not go together"),
        (None, {A: np.ones((2, 32), np.int8)}, "has other parts"),
        (None, parts() | {"adapter_factors": np.full(2, np.inf, "f4")}, "not finite"),
    ],
)
def test_parts_that_do_not_fit_the_slots_are_refused(
    program, tmp_path, path, content, text
):
    layer = path or "model.layers.0.self_attn.q_proj"
    write_adapter(tmp_path / "x.kva", program.identity, {layer: content})
    with pytest.raises(BadAdapter, match=text):
        program.adapters.load(tmp_path / "x.kva")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "type 'PREFIX_TUNING', kvc has LORA"),
        ({"r": 0}, "wrong ranks or alphas"),
        ({"lora_alpha": "8"}, "wrong ranks or alphas"),
        ({"rank_pattern": {"q_proj": None}}, "wrong ranks or alphas"),
        ({"target_parameters": ["experts.w1"]}, "its target_parameters"),
        ({"layer_replication": [[0, 1]]}, "its layer_replication"),
    ],
)
def test_settings_that_are_not_computed_are_named(program, folder, changes, text):
    change_json(folder / CONFIG, **changes)
    with pytest.raises(BadAdapter, match=text):
        read_peft(folder, program._engine.program)


def test_folders_without_their_files_are_told(program, folder):
    bare = program._engine.program
    (folder / CONFIG).rename(folder / "other.json")
    with pytest.raises(BadAdapter, match=CONFIG):
        read_peft(folder, bare)
    (folder / CONFIG).write_text("{")
    with pytest.raises(BadAdapter, match="is not JSON"):
        read_peft(folder, bare)
    (folder / "other.json").rename(folder / CONFIG)
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-1])
    with pytest.raises((BadAdapter, CheckpointError)):
        read_peft(folder, bare)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(BadAdapter, match="is a pickle"):
        read_peft(folder, bare)


def test_tensors_that_are_not_computed_are_named(program, folder):
    tensors = load_file(folder / WEIGHTS)
    first = next(iter(tensors))
    for name in ("base_model.model.model.embed_tokens.lora_embedding_A", "odd"):
        save_file(tensors | {name: tensors[first]}, folder / WEIGHTS)
        with pytest.raises(BadAdapter, match=f"tensor '{name}'"):
            read_peft(folder, program._engine.program)
    whole = {"base_model.model.lm_head.weight": np.ones((64, 32), np.float32)}
    save_file(tensors | whole, folder / WEIGHTS)
    with pytest.raises(BadAdapter, match="no slots for lm_head"):
        read_peft(folder, program._engine.program)


def test_layers_without_slots_are_named(program, home, tmp_path):
    model = tiny_llama(num_hidden_layers=1)
    save_adapter(model, tmp_path / "more", target_modules=["q_proj", "up_proj"])
    with pytest.raises(BadAdapter, match=r"no slots for model.layers.0.mlp.up_proj"):
        read_peft(tmp_path / "more", program._engine.program)


def check_not_made(home: Path, folder: Path) -> str:
    """Check that `kvc adapter` writes no file of a folder; return what it says."""
    file, given = folder / "x.kva", ("--base", str(home / "m.kvc"))
    made = CliRunner().invoke(main, ["adapter", str(folder), *given, "-o", str(file)])
    assert made.exit_code == 1, made.output
    assert not file.exists()
    return made.output


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"r": 8}, "has rank 8, the slots at most 4; compile the bundle"),
        ({"r": 8}, "--adapters COUNT,rank=8"),
        ({"lora_bias": True}, "--adapters COUNT,dora"),
    ],
)
def test_no_file_is_made_that_does_not_fit(home, tmp_path, settings, text):
    model = tiny_llama(num_hidden_layers=1)
    folder = save_adapter(
        model, tmp_path / "peft", target_modules=["q_proj"], **settings
    )
    assert text in check_not_made(home, folder)


@pytest.mark.parametrize(
    ("value", "text"),
    [(np.nan, "not finite float32"), (1e38, "adapter_factors is not finite")],
)
def test_no_int8_file_is_made_of_numbers_beyond_float32(home, folder, value, text):
    tensors = load_file(folder / WEIGHTS)
    save_file(
        {name: np.full_like(one, value) for name, one in tensors.items()},
        folder / WEIGHTS,
    )
    assert text in check_not_made(home, folder)


def test_int8_matrices_of_almost_zeros_are_zeros(home, program):
    bare = program._engine.program
    layers = read_peft(home / "peft", bare)
    small = {
        path: {name: np.full_like(part, 1e-43) for name, part in parts.items()}
        for path, parts in layers.items()
    }
    for stored in stored_layers(small, bare).values():
        assert not stored[A].any()
        assert not stored[B].any()


def test_dora_asks_for_the_model(other, tmp_path):
    save_adapter(other.model, tmp_path / "dora", use_dora=True)
    needs = pytest.raises(BadAdapter, match="needs the weights of the model")
    with load(other.path) as program, needs:
        read_peft(tmp_path / "dora", program._engine.program)


@pytest.mark.parametrize("recipe", ["xnnpack_q8", "bf16", ["cpu_fp32", "xnnpack_fp32"]])
def test_recipes_without_adapters_say_what_to_do(recipe):
    with pytest.raises(BadModelSetting, match="merge_and_unload"):
        export_hf(tiny_llama(), recipe=recipe, adapters=AdapterSlots(1))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"count": 0}, "count"),
        ({"count": 1, "rank": True}, "rank"),
        ({"count": 1, "targets": "q_proj"}, "targets"),
        ({"count": 1, "whole": (1,)}, "whole"),
    ],
)
def test_wrong_slots_are_refused(settings, text):
    with pytest.raises(BadModelSetting, match=text):
        AdapterSlots(**settings)


def test_targets_that_there_are_not_are_listed():
    slots = AdapterSlots(1, targets=("qproj",))
    with pytest.raises(BadModelSetting, match="q_proj"):
        export_hf(tiny_llama(), recipe="cpu_fp32", adapters=slots)


def test_models_that_cannot_have_slots_say_why():
    norm = torch.nn.LayerNorm(4)
    with pytest.raises(BadModelSetting, match="a model with linear layers"):
        compile_program(
            norm, [Method("forward", (torch.ones(1, 4),))], adapters=AdapterSlots(1)
        )
    wrong = torch.nn.Linear(4, 4)
    wrong.adapted_run = wrong.forward
    with pytest.raises(BadModelSetting, match="do not begin with adapted_"):
        compile_program(
            wrong,
            [Method("adapted_run", (torch.ones(1, 4),))],
            adapters=AdapterSlots(1),
        )
    taken = torch.nn.Linear(4, 4)
    taken.register_buffer("kvc_adapters", torch.zeros(1))
    with pytest.raises(BadModelSetting, match="without a buffer kvc_adapters"):
        compile_program(
            taken, [Method("forward", (torch.ones(1, 4),))], adapters=AdapterSlots(1)
        )
    tokens_first = torch.nn.Sequential(torch.nn.Linear(4, 4))
    with pytest.raises(KvcError, match="rows of the batch"):
        compile_program(
            tokens_first,
            [Method("forward", (torch.ones(3, 1, 4),))],
            recipe="cpu_fp32",
            adapters=AdapterSlots(1),
        )
    with pytest.raises(BadModelSetting, match="that the methods call"):
        compile_program(
            torch.nn.Linear(4, 4),
            [Method("forward", (torch.ones(1, 4),))],
            recipe="cpu_fp32",
            adapters=AdapterSlots(1),
        )
    slots, model = AdapterSlots(1, whole=("attn.c_proj",)), build("gpt2", shallow=True)
    with pytest.raises(BadModelSetting, match="whole"):
        export_hf(model, recipe="cpu_fp32", adapters=slots)


def test_the_model_stays_as_it_was(other):
    model = other.model
    with pytest.raises(KvcError):
        compile_program(
            model,
            [Method("nothing", (TOKENS,), dynamic={"x": {0: Dim("n", 1, 2)}})],
            recipe="cpu_fp32",
            adapters=AdapterSlots(1),
        )
    assert [name for name, _ in model.named_buffers()] == other.buffers
    assert not any(module._forward_hooks for module in model.modules())
