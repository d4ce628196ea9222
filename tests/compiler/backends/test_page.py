"""The page on how to write a backend: its example runs."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "compiler/backends/README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
TOML = [text for language, text in BLOCKS if language == "toml"]
PYTHON = [text for language, text in BLOCKS if language == "python"]


def run(folder, *command):
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True
    )


def write_example(folder):
    for name, text in zip(("toy_compiler", "toy_runtime", "use"), PYTHON, strict=True):
        (folder / f"{name}.py").write_text(text)
    (folder / "toy.toml").write_text(TOML[0])


def test_the_example_runs(tmp_path):
    write_example(tmp_path)
    done = run(tmp_path, "use.py")
    assert done.stdout == "[[1. 2. 3. 4.]\n [1. 2. 3. 4.]]\n16 bytes packed\n", (
        done.stderr
    )


def test_the_run_time_half_needs_no_torch(tmp_path):
    write_example(tmp_path)
    code = "import sys, toy_runtime; sys.exit('torch' in sys.modules)"
    assert run(tmp_path, "-c", code).returncode == 0


HOSTILE = """
from dataclasses import replace

from kvc.schema.dtypes import DType
from kvc.schema.model import Alias, Caller, Graph, Instruction, Ref, Scratch, Value
from kvc.schema.types import TensorType
from toy_runtime import check

kind = TensorType(DType.FLOAT32, (4,))
places = (Caller(), Scratch(0, 16), Scratch(64, 16))
values = tuple(Value(kind, place) for place in places)
double = Instruction("aten::add.Tensor", (Ref(0), Ref(0), 1), (1,))
last = Instruction("aten::mul.Tensor", (Ref(1), Ref(0)), (2,))
good = Graph(values, (0,), (2,), (double, last), 128, 128)
check(good)
whole = Value(TensorType(DType.INT64, (4,)), Caller())
for bad in (
    replace(good, instructions=(double, replace(last, op="aten::sub.Tensor"))),
    replace(good, instructions=(replace(double, arguments=(Ref(0), Ref(0), 2)), last)),
    replace(good, values=(whole, *values[1:])),
    replace(good, outputs=(2, 0)),
    replace(good, outputs=(2, 2)),
    replace(good, values=(values[0], Value(kind, Alias(0)), values[2])),
):
    try:
        check(bad)
    except ValueError as error:
        print(error)
"""


def test_the_example_refuses_code_that_it_cannot_run(tmp_path):
    write_example(tmp_path)
    assert run(tmp_path, "-c", HOSTILE).stdout.splitlines() == [
        "no op aten::sub.Tensor",
        "a sum with a factor",
        "what is not float32",
        "an output that no step makes",
        "the same output twice",
        "a result over an input that is no output",
    ]
