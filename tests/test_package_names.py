"""The names at the top of the package, which are found when they are used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kvc
from kvc import compiler, runtime
from kvc.schema.errors import BadModelFolder, CompileError

STUB = Path(kvc.__file__).with_suffix(".pyi")


def test_names_are_those_of_the_parts():
    assert kvc.load is runtime.load
    assert kvc.generate is runtime.generate
    assert kvc.Conversation is runtime.Conversation
    assert kvc.compile is kvc.compile_model
    assert kvc.compile_program is compiler.compile_program
    assert kvc.export_hf is compiler.export_hf
    assert callable(kvc.transcribe)


def test_compile_takes_methods_of_a_module_or_a_model_of_transformers(tmp_path):
    linear = torch.nn.Linear(4, 2)
    made = kvc.compile(linear, [kvc.Method("forward", (torch.ones(1, 4),))])
    assert [method.name for method in made.program.methods] == ["forward"]
    assert made.save(tmp_path / "linear.kvc").file_nbytes > 0
    with kvc.load(tmp_path / "linear.kvc") as program:
        assert program.forward(torch.ones(1, 4)).shape == (1, 2)
    with pytest.raises(BadModelFolder):
        kvc.compile(tmp_path / "nothing", recipe="cpu_q8")
    with pytest.raises(CompileError, match="a model of transformers, or the path of"):
        kvc.compile(linear)


def test_the_stub_and_dir_list_the_same_names_and_all_are_there():
    names = set()
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets}
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    public = {name for name in dir(kvc) if not name.startswith("_")} | {"__version__"}
    assert names == public
    for name in names:
        assert getattr(kvc, name) is not None


@pytest.mark.parametrize(
    ("name", "meant"),
    [("lod", "load"), ("Sesion", "Session"), ("conversation", "Conversation")],
)
def test_a_misspelt_name_is_told_with_the_nearest(name, meant):
    told = f"module 'kvc' has no attribute {name!r} .did you mean {meant!r}"
    with pytest.raises(AttributeError, match=told):
        getattr(kvc, name)


def test_a_name_that_is_like_no_other_is_told_alone():
    for name in ("xyzzy", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
            getattr(kvc, name)


def test_what_runs_a_bundle_brings_no_torch():
    code = (
        "import sys, kvc\n"
        "assert not [name for name in sys.modules if name.startswith('kvc.')]\n"
        "from kvc import load, runtime\n"
        "kvc.Conversation, kvc.embed, dir(kvc)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
