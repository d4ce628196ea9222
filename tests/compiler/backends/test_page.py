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


def test_the_example_refuses_a_payload_that_reads_what_is_not_declared(tmp_path):
    write_example(tmp_path)
    code = (
        "from toy_runtime import check\n"
        "code = dict(first=2, names=['w'], outputs=[2], "
        "steps=[['aten::mul.Tensor', 0, 1, 0]])\n"
        "check(code, ['w'])\n"
        "try: check(code, ['v'])\n"
        "except ValueError as error: print(error)\n"
    )
    assert run(tmp_path, "-c", code).stdout == "a weight that is not declared\n"
