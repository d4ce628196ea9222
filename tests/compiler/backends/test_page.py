"""The page on how to write a backend: its example runs.

It runs in a process of its own; with a change, in this one, which has torch already.
"""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvc.compiler.backends import BACKENDS
from kvc.runtime.delegates.table import DELEGATES
from kvc.schema.container import BundleFile

PAGE = (Path(__file__).parents[3] / "compiler/backends/README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
TOML = [text for language, text in BLOCKS if language == "toml"]
PYTHON = [text for language, text in BLOCKS if language == "python"]


def run(folder, *command):
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True
    )


def write_example(folder):
    for name, text in zip(("toy_runtime", "toy_compiler", "use"), PYTHON, strict=True):
        (folder / f"{name}.py").write_text(text)
    (folder / "toy.toml").write_text(TOML[0])


@pytest.fixture
def run_here(tmp_path, monkeypatch, capsys):
    """Write the example; return what runs it and tells what it printed."""
    write_example(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run_here():
        try:
            runpy.run_path("use.py")
        finally:
            for known in (BACKENDS, DELEGATES):
                known.pop("toy", None)
            for name in ("toy_runtime", "toy_compiler"):
                sys.modules.pop(name, None)
        return capsys.readouterr().out

    return run_here


def test_the_drill_runs(tmp_path):
    write_example(tmp_path)
    done = run(tmp_path, "use.py")
    assert done.stdout == "as the model has it\n", done.stderr
    with BundleFile.open(tmp_path / "toy.kvc") as file:
        (partition,) = file.program.delegates
        (block,) = file.program.methods[0].blocks
    assert partition.backend == "toy"
    ops = [step.op for step in block.graph.instructions]
    assert sorted(ops) == [*("aten::linear",) * 2, "aten::mul.Tensor", "aten::relu"]


def test_the_drill_tells_of_a_broken_function(tmp_path, run_here):
    code = (tmp_path / "toy_runtime.py").read_text()
    (tmp_path / "toy_runtime.py").write_text(code.replace("(x, 0, out", "(x, 1, out"))
    assert run_here().endswith(" off\n")


def test_an_operator_that_is_added_joins_the_partition(tmp_path, run_here):
    code = (tmp_path / "use.py").read_text()
    (tmp_path / "use.py").write_text(code.replace("torch.relu(", "torch.sigmoid("))
    assert run_here() == "as the model has it\n"
    with BundleFile.open(tmp_path / "toy.kvc") as file:
        assert len(file.program.delegates) == 2
    sigmoid = "lambda out, x: np.copyto(out, 1 / (1 + np.exp(-x)))"
    taken = f"FUNCTIONS['aten::sigmoid'] = {sigmoid}"
    with (tmp_path / "toy_runtime.py").open("a") as file:
        file.write(f"{taken}\n")
    assert run_here() == "as the model has it\n"
    with BundleFile.open(tmp_path / "toy.kvc") as file:
        assert len(file.program.delegates) == 1


def test_the_run_time_half_needs_no_torch(tmp_path):
    write_example(tmp_path)
    code = "import sys, toy_runtime; sys.exit('torch' in sys.modules)"
    assert run(tmp_path, "-c", code).returncode == 0


def test_the_entry_points_of_the_page_name_its_classes():
    points = tomllib.loads(TOML[1])["project"]["entry-points"]
    assert points == {
        "kvc.backends": {"toy": "toy_compiler:ToyBackend"},
        "kvc.delegates": {"toy": "toy_runtime:ToyDelegate"},
    }


def test_files_that_the_page_names_are_there():
    root = Path(__file__).parents[3]
    named = re.findall(r"`((?:tests|runtime_py|schema|compiler)/[\w/.]*)`", PAGE)
    assert len(named) > 8
    assert [name for name in named if not (root / name).exists()] == []
