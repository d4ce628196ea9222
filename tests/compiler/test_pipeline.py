import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_models import IndexCopyCache
from torch import nn

from kvc.compiler import Dim, Method, compile_program, export_hf
from kvc.compiler.lower.pass_lists import passes_for
from kvc.recipes import load_recipe
from kvc.schema.errors import CompileError, UnknownRecipe

SUPPORT = Path(__file__).parents[1] / "support"
ARGS = (torch.ones(1, 1, 4), torch.tensor([0]))
DECODE, PREFILL = Method("decode", args=ARGS), Method("prefill", args=ARGS)
SCRIPT = """
import torch
from kvc.compiler import (compile_program)
from kvc.compiler.models.decoder import (Decoder, DecoderConfig)
from kvc.compiler.models.demo import (decoder_methods)

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


TOKENS = torch.zeros(2, 3, dtype=torch.int64)
SEQ = {"tokens": {1: Dim("seq", 1, 8)}}


class Table(nn.Module):
    """Logits [batch, vocab] of the last token, and what is no such thing."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(torch.arange(20.0).reshape(5, 4))

    def last(self, tokens):
        return nn.functional.embedding(tokens[:, -1], self.rows)

    def last_of_two(self, tokens):
        return nn.functional.embedding(tokens[:, 1], self.rows)

    def every(self, tokens):
        return nn.functional.embedding(tokens, self.rows)

    def pair(self, tokens):
        return self.last(tokens), self.last(tokens) * 2

    def boxed(self, tokens):
        return {"logits": self.last(tokens)}

    def doubles(self, tokens):
        return self.last(tokens).double()

    def real(self, x):
        return x * 2

    def nothing(self):
        return self.rows * 1


def method(name, role, args=(TOKENS,), **options):
    return Method(name, args=args, role=role, **options)


def refusal(methods, model=None):
    with pytest.raises(CompileError) as caught:
        compile_program(Table() if model is None else model, methods)
    return str(caught.value)


def test_fitting_roles_are_kept():
    prefill = method("last", "prefill", dynamic=SEQ)
    assert compile_program(Table(), [prefill]).program.methods[0].role == "prefill"
    decode = method("last", "decode", (TOKENS[:, :1],))
    assert compile_program(Table(), [decode]).program.methods[0].role == "decode"


def test_all_logits_are_a_role():
    every = method("every", "prefill_all", dynamic=SEQ)
    assert compile_program(Table(), [every]).program.methods[0].role == "prefill_all"
    twice = [every, method("last", "prefill_all")]
    assert refusal(twice) == "roles given twice: prefill_all"


def test_prefills_may_be_several():
    long = method("last", "prefill", dynamic=SEQ)
    short = method("last_of_two", "prefill", (TOKENS[:, :2],))
    made = compile_program(Table(), [long, short]).program.methods
    assert [m.role for m in made] == ["prefill", "prefill"]


@pytest.mark.parametrize("role", ["Prefill", "chat", None])
def test_an_unknown_role_is_refused(role):
    known = "'encode', 'prefill', 'decode', 'prefill_all'"
    expected = f"method last, role: expected {known} or '' for none"
    assert refusal([method("last", role)]) == f"{expected}, found {role!r}"


def test_two_methods_that_decode_are_refused():
    twice = [method(name, "decode", (TOKENS[:, :1],)) for name in ("last", "every")]
    assert refusal(twice) == "roles given twice: decode"


@pytest.mark.parametrize(
    ("name", "role", "args", "found"),
    [
        ("last", "decode", (TOKENS,), "found (tokens: int64[2, 3]) -> float32[2, 4]"),
        ("every", "prefill", (TOKENS,), "-> float32[2, 3, 4]"),
        ("pair", "prefill", (TOKENS,), "-> (float32[2, 4], float32[2, 4]) in a"),
        ("boxed", "prefill", (TOKENS,), "-> (float32[2, 4]) in a container"),
        ("doubles", "prefill", (TOKENS,), "-> float64[2, 4]"),
        ("real", "prefill", (torch.ones(2, 3),), "(x: float32[2, 3]) -> "),
        ("real", "decode", (torch.ones(2, 1),), "(x: float32[2, 1]) -> "),
        ("nothing", "prefill", (), "found () -> float32[5, 4]"),
        ("last", "prefill_all", (TOKENS,), "(tokens: int64[2, 3]) -> float32[2, 4]"),
        ("real", "prefill_all", (torch.ones(2, 3),), "(x: float32[2, 3]) -> "),
    ],
)
def test_a_role_whose_signature_does_not_fit_is_refused(name, role, args, found):
    text = refusal([method(name, role, args)])
    assert f"method {name} has the role {role}, which expects " in text
    assert found in text


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        ("last", "methods: expected a sequence of kvc.compiler.Method, found a value"),
        (Method("last"), "sequence of kvc.compiler.Method, found a Method; give [Meth"),
        (["last"], "methods[0]: expected a kvc.compiler.Method, found a value of type"),
        (
            [Method],
            "methods[0]: expected a kvc.compiler.Method, found the class Method",
        ),
    ],
)
def test_what_are_no_methods_is_refused(methods, text):
    assert text in refusal(methods)


@pytest.mark.parametrize("model", ["demo", 3, Table])
def test_what_is_no_module_is_refused(model):
    text = refusal([method("last", "")], model)
    assert text.startswith("the model: expected a torch.nn.Module, found ")


def test_an_encoder_takes_and_returns_anything():
    made = compile_program(Table(), [method("real", "encode", (torch.ones(3),))])
    assert made.program.methods[0].role == "encode"
    both = [method(name, "encode") for name in ("last", "every")]
    assert "encode" in refusal(both)


@pytest.mark.parametrize("compiling", [compile_program, export_hf])
def test_every_way_to_compile_has_one_default_recipe(compiling):
    assert inspect.signature(compiling).parameters["recipe"].default == "cpu_fp32"
