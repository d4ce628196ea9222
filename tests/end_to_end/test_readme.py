import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from hf_folders import word_tokenizer
from safetensors import safe_open

from kvc.runtime import load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
PAGE = (ROOT / "runtime_py/README.md").read_text()
GENERATING, ROWS, DRAFTING = re.findall(
    r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
COMPILE_ROWS, COMPILE_LARGE = re.findall(
    r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
)
CALM = "draft_tokens=4, max_tokens=40, temperature=0"
PYTHON = [text for language, text in BLOCKS if language == "python"]
SHELL = [text for language, text in BLOCKS if language == "sh"]
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
}


def run(folder, *command):
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell(folder, text):
    return run(folder, "bash", "-euc", text)


def test_the_first_example_runs_in_fifteen_lines(tmp_path):
    example = PYTHON[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    text = run(tmp_path, "python", "-c", example)
    assert len(text) == 40
    assert "prefill + decode + prefill_all, shared" in shell(tmp_path, SHELL[3])
    likeliest = ("demo.kvc", "def ", "--max-tokens", "40", "--temperature", "0")
    assert run(tmp_path, "kvc", "generate", *likeliest) == text
    assert run(tmp_path, "python", "-c", PYTHON[3]) == "[9] of 512\n"
    assert "touched" in run(tmp_path, "python", "-c", PYTHON[4])
    told = run(tmp_path, "python", "-c", GENERATING)
    assert re.search(r"^(stop_string|max_tokens), \d+ tokens$", told, re.MULTILINE)
    assert " tokens/s\n" in told
    assert ": position 24 of 1024> SessionResidency(" in page(
        tmp_path, "runtime_py/forks"
    )
    assert page(tmp_path, "tools").endswith(" of 1024\n")
    shell(tmp_path, COMPILE_LARGE)
    told = run(tmp_path, "python", "-c", DRAFTING.replace("draft_tokens=4", CALM))
    assert re.search(r"^(\d+) of (\d+) guesses, \d+%$", told, re.MULTILINE)


def page(folder, name):
    """Return what the first example of a page prints."""
    text = (ROOT / name / "README.md").read_text()
    example = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]
    return run(folder, "python", "-c", example)


def test_the_compilers_page_streams_a_checkpoint(tmp_path):
    page(tmp_path, "compiler")
    with load(tmp_path / "linear.kvc") as program:
        assert list(program.methods) == ["forward"]


def test_a_model_of_ones_own_compiles_and_runs(tmp_path):
    (tmp_path / "total.py").write_text(PYTHON[1])
    called = shell(tmp_path, SHELL[4])
    assert "result 0: float32[4]" in called
    kept = shell(tmp_path, SHELL[5]).splitlines()
    assert kept[0] == kept[2] == "result 0: float32[4]"
    once, twice = (np.fromstring(kept[i].strip("[]"), sep=" ") for i in (1, 3))
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-4)
    assert kept[4].startswith("total.session: a saved session")
    run(tmp_path, "python", "-c", PYTHON[5])
    with (
        load(tmp_path / "total.kvc") as program,
        safe_open(tmp_path / "total.safetensors", "numpy") as weights,
    ):
        stored = program.data["project.weight"].array()
        assert np.array_equal(stored, weights.get_tensor("project.weight"))


def test_a_hugging_face_folder_becomes_a_bundle_that_generates(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tokenizer.json").write_text(word_tokenizer(256))
    run(tmp_path, "python", "-c", PYTHON[2])
    assert SHELL[6] == "pip install -e '.[hf]'\n"
    downloading, compiling, generating = SHELL[7].splitlines()
    assert downloading.startswith("hf download HuggingFaceTB/SmolLM2-135M --local-dir")
    assert compiling.startswith("kvc compile ./SmolLM2-135M --recipe xnnpack_q8")
    assert shell(tmp_path, generating.replace("smol.kvc", "tiny.kvc"))
    shell(tmp_path, COMPILE_ROWS)
    told = run(tmp_path, "python", "-c", ROWS).splitlines()
    assert [line.partition(":")[0] for line in told[:3]] == [
        "[5, 6, 7]", "[8]", "[9, 10]"
    ]  # fmt: skip
    # Weights are random: the tokens may be any, a stop token too.
    assert all(line.endswith(("(max_tokens)", "(stop)")) for line in told[:3])
    assert len(ast.literal_eval(told[3])) == 3


def test_weights_move_into_a_file_of_their_own_and_back(tmp_path):
    told = shell(tmp_path, SHELL[8])
    assert "whole.kvc" in told
    assert "removed 0 files" in told


def test_the_commands_that_set_up_everything_exist():
    for text in (SHELL[0], SHELL[2]):
        script = ROOT / text.strip()
        assert os.access(script, os.X_OK)
        run(ROOT, "bash", "-n", script)
    assert SHELL[1] == ". .venv/bin/activate\n"
    assert len(SHELL) == 9


def test_the_recipes_are_those_that_ship():
    named = re.findall(r"^\| `(\w+)` \| (?!does)", README, re.MULTILINE)
    assert set(named) >= {path.stem for path in (ROOT / "recipes").glob("*.toml")}
