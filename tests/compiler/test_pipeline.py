import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import IndexCopyCache

from kvc.compiler import Method, compile_program
from kvc.compiler.lower.pass_lists import passes_for
from kvc.recipes import load_recipe
from kvc.schema.errors import CompileError, UnknownRecipe

SUPPORT = Path(__file__).parents[1] / "support"
ARGS = (torch.ones(1, 1, 4), torch.tensor([0]))
DECODE, PREFILL = Method("decode", args=ARGS), Method("prefill", args=ARGS)
SCRIPT = """
import torch
from kvc.compiler import compile_program
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import decoder_methods

config = DecoderConfig(
    vocab=8, dim=8, layers=1, heads=2, kv_heads=1, ffn=8, capacity=8
)
torch.manual_seed(0)
bundle = compile_program(
    Decoder(config).eval(),
    decoder_methods(config, 4),
    "xnnpack_q8",
    metadata={"b": 1, "a": [2]},
)
bundle.save("model.kvc")
"""


def build_elsewhere(folder, seed):
    """Run the script in a process of its own."""
    environment = os.environ | {"PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", SCRIPT]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return (folder / "model.kvc").read_bytes()


def test_processes_folders_and_hash_seeds_give_equal_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = {}
    exec(SCRIPT, here)
    found = Path("model.kvc").read_bytes()
    (tmp_path / "other").mkdir()
    for seed in ("12345", "0"):
        if os.environ.get("PYTHONHASHSEED") != seed:
            assert build_elsewhere(tmp_path / "other", seed) == found
            break


def test_no_methods_are_refused():
    with pytest.raises(CompileError, match="no methods to compile"):
        compile_program(IndexCopyCache(), [])


def test_methods_given_twice_are_refused():
    with pytest.raises(CompileError, match="methods given twice: decode"):
        compile_program(IndexCopyCache(), [DECODE, PREFILL, DECODE])


@pytest.mark.parametrize("setting", [{1, 2}, object(), b"bytes"])
def test_metadata_that_is_no_json_is_refused(setting):
    with pytest.raises(CompileError, match="metadata must be JSON"):
        compile_program(IndexCopyCache(), [DECODE], metadata={"setting": setting})


def test_metadata_is_kept_as_json():
    bundle = compile_program(IndexCopyCache(), [DECODE], metadata={"b": [1], "a": None})
    assert dict(bundle.program.metadata) == {"a": "null", "b": "[1]"}


def test_an_unknown_recipe_is_refused_before_anything_is_traced():
    stages = []
    with pytest.raises(UnknownRecipe, match="no recipe 'none'"):
        compile_program(
            IndexCopyCache(), [DECODE], "none", progress=lambda *s: stages.append(s)
        )
    assert stages == []


def test_progress_is_told_stage_by_stage():
    stages = []
    compile_program(
        IndexCopyCache(), [DECODE, PREFILL], progress=lambda *s: stages.append(s)
    )
    assert stages == [
        ("capture", 0, 2, "decode"),
        ("capture", 1, 2, "prefill"),
        ("optimise", 0, 1, ""),
        ("lower", 0, 1, ""),
        ("plan", 0, 1, ""),
    ]


def test_the_order_of_methods_changes_neither_states_nor_weights():
    one = compile_program(IndexCopyCache(), [DECODE, PREFILL]).program
    other = compile_program(IndexCopyCache(), [PREFILL, DECODE]).program
    assert one.states == other.states
    assert {n.name for n in one.names} == {n.name for n in other.names}


def test_the_provenance_depends_on_the_program_alone():
    one = compile_program(IndexCopyCache(), [DECODE]).program.provenance
    again = compile_program(IndexCopyCache(), [DECODE]).program.provenance
    other = compile_program(IndexCopyCache(), [PREFILL]).program.provenance
    assert one == again
    assert one.source_digest != other.source_digest


def test_a_recipe_chooses_its_passes():
    names = [p.name for p in passes_for(load_recipe("bf16"), ())]
    assert "store-bfloat16" in names
    assert "quantize-weights" not in names
    assert "quantize-weights" in [
        p.name for p in passes_for(load_recipe("xnnpack_q8"), ())
    ]
