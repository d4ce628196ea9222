"""What the pages say, done: their examples in Python, and their commands.

Commands, and what compiles the demo, run in this process, which has torch already.
"""

import ast
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hf_folders import word_tokenizer
from safetensors import safe_open

from kvc.compiler import compile_program
from kvc.compiler.models import BUILTIN
from kvc.runtime import load
from kvc.tools.cli import main

ROOT = Path(__file__).parents[2]


def examples(page, language):
    """Return the blocks of a page in a language."""
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


README = (ROOT / "README.md").read_text()
RECIPES = (ROOT / "recipes/README.md").read_text()
FIRST, PLAIN, GROWING = examples("README.md", "python")
DEMO, CHECKS, COMMANDS, INSTALL, CHATTING = examples("README.md", "sh")
OWN, *_ = examples("compiler/WRITING_MODELS.md", "python")
COMPILE_OWN, KEEP_OWN = examples("compiler/WRITING_MODELS.md", "sh")
(TINY,) = examples("compiler/hugging_face/README.md", "python")
(EXPORTED,) = examples("in_transformers/TRANSFORMERS.md", "python")
REWOUND, CACHED = examples("runtime_py/sessions/README.md", "python")
RELEASED, STREAMED = examples("schema/container/README.md", "python")
(MOVED,) = examples("schema/container/README.md", "sh")
GENERATING, _FORM, ROWS, BEAMS, DRAFTING, *_ = examples(  # others run elsewhere
    "runtime_py/GENERATING.md", "python"
)  # test_transcribing.py runs the last
COMPILE_ROWS, COMPILE_LARGE = examples("runtime_py/GENERATING.md", "sh")
TALKING, KEPT, _TOOLS, RECORDING = examples("tools/COMMANDS.md", "python")
(PROMPTS,) = examples("serving/batch/BATCH.md", "json")
BATCH, AGAIN = examples("serving/batch/BATCH.md", "sh")
OVER_RAY, EVALUATED, SWEPT = examples("serving/batch/BATCH.md", "python")
(FORKING,) = examples("runtime_py/memory/README.md", "python")
(SCHEDULED,) = examples("serving/scheduling/README.md", "python")
CALM = "draft_tokens=4, max_tokens=40, temperature=0"


def run(folder, example):
    """Return what an example prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_here(folder, example):
    """Return what an example prints, in this process, which has imported torch."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(example, {"__name__": "__main__"})
    return printed.getvalue()


def shell(folder, text):
    """Return what the lines of a shell print, in this process."""
    return "".join(command(folder, *shlex.split(line)) for line in text.splitlines())


def command(folder, program, *arguments):
    if program == "python":
        return run_here(folder, arguments[1])
    assert program == "kvc"
    with contextlib.chdir(folder):
        given = [name for word in arguments for name in names_of(word)]
        done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    return done.stdout


def names_of(word):
    """Return what a shell makes of a word."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


@pytest.fixture(scope="module", autouse=True)
def demo():
    """Let all commands and examples take one demo."""
    spec = BUILTIN["demo"]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BUILTIN, "demo", lambda: spec)
        yield spec


@pytest.mark.parametrize("name", ["prefill", "decode", "prefill_all"])
def test_the_demo_has_the_methods_of_a_decoder(demo, name):
    (method,) = [method for method in demo.methods if method.name == name]
    bundle = compile_program(demo.model, [method], states=demo.states)
    assert [made.name for made in bundle.program.methods] == [name]


class First:
    """What the first example leaves in its folder, and what it prints."""

    def __init__(self, folder):
        self.folder, self.example = folder, FIRST
        self.text = run_here(folder, self.example)


@pytest.fixture(scope="module")
def first(demo, tmp_path_factory):
    return First(tmp_path_factory.mktemp("first"))


def test_the_first_example_runs_in_fifteen_lines(first):
    assert len([line for line in first.example.splitlines() if line.strip()]) <= 15
    assert len(first.text) == 40
    assert (first.folder / "demo.kvc").exists()


def test_its_commands_do_what_it_does(first):
    told = shell(first.folder, COMMANDS)
    assert "prefill + decode + prefill_all, shared" in told
    assert told.endswith(f"{first.text}\n")


def test_a_request_is_scheduled(first):
    assert len(run_here(first.folder, SCHEDULED)) == 24


def test_a_model_without_state_is_compiled_and_called(tmp_path):
    shown = "\nprint(y.shape)\n"
    assert run_here(tmp_path, PLAIN + shown) == "(4, 2)\n"


def test_a_cache_grows_without_a_maximum_and_without_copies(tmp_path):
    assert run_here(tmp_path, GROWING) == "[990]\n"
    told = command(tmp_path, "kvc", "dump", "growing.kvc", "--copies")
    assert "2 updates of states, all in place" in told


def test_an_attention_layer_of_ones_own_is_rewound(tmp_path):
    assert len([line for line in CACHED.splitlines() if line.strip()]) <= 32
    assert run_here(tmp_path, CACHED) == "[9]\n"


def test_a_session_is_saved_rewound_and_forked(first):
    assert run(first.folder, REWOUND) == "[9] of 512\n"


def test_memory_is_told_and_given_back(first):
    assert "touched" in run(first.folder, RELEASED)


def test_the_runtime_s_page_generates(first):
    told = run(first.folder, GENERATING)
    assert re.search(r"^(stop_string|max_tokens), \d+ tokens$", told, re.MULTILINE)
    assert " tokens/s\n" in told


def test_the_page_of_forks_shares_a_prefix(first):
    told = run(first.folder, FORKING)
    assert ": position 24 of 1024> SessionResidency(" in told


def test_the_page_of_batches_answers_prompts(first):
    (first.folder / "prompts.jsonl").write_text(PROMPTS)
    for line in (BATCH, AGAIN):
        _, *words = shlex.split(line)
        with contextlib.chdir(first.folder):
            done = CliRunner().invoke(main, words)
        assert done.exit_code == 1, done.output  # one of them has failed
        found = (first.folder / "answers.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in found]
        assert [row["id"] for row in rows] == ["fib", 2, 3, 4]
        assert [row.get("num_generated_tokens") for row in rows[:2]] == [40, 20]
        assert "did you mean 'temperature'?" in rows[3]["error"]["message"]


@pytest.mark.exhaustive
def test_the_page_of_batches_has_a_step_of_ray_data(first):
    pytest.importorskip("ray.data")
    told = run(first.folder, OVER_RAY)
    assert sorted(re.findall(r"'name': '(\w+)', 'text'", told)) == [
        "add",
        "pop",
        "push",
    ]


@pytest.mark.exhaustive
def test_the_page_of_batches_evaluates_and_sweeps(first):
    pytest.importorskip("ray")
    words = run(first.folder, EVALUATED).split()
    assert words[0] == "demo.kvc"
    assert 1 < float(words[2]) < 256
    _, good, bad, reason = run(first.folder, SWEPT).splitlines()
    assert good.split()[:2] == ["demo", "cpu_q8"]
    assert bad.split() == ["demo", "no_recipe", "-", "-", "-", "-"]
    assert reason.startswith("demo, no_recipe: kvc compile: no recipe 'no_recipe'")


def test_the_page_of_the_tools_talks(first):
    assert run(first.folder, TALKING).endswith(" of 1024\n")


def test_the_page_of_the_tools_keeps_a_chat(first):
    *_, last = run(first.folder, KEPT).splitlines()
    assert last.endswith(" 1")  # token was read: what was not yet in the session


def test_the_page_of_the_tools_records(first):
    told = run(first.folder, RECORDING)
    assert re.search(
        r"^ +\d+\.\d us  kvc::attention  kvc\.compiler", told, re.MULTILINE
    )


def test_a_small_model_drafts_for_a_large_one(first):
    shell(first.folder, COMPILE_LARGE)
    told = run(first.folder, DRAFTING.replace("draft_tokens=4", CALM))
    assert re.search(r"^(\d+) of (\d+) guesses, \d+%$", told, re.MULTILINE)


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    """The folder in which a checkpoint was made, and compiled without its model."""
    folder = tmp_path_factory.mktemp("linear")
    run_here(folder, STREAMED)
    return folder


def test_the_page_of_weights_streams_a_checkpoint(linear):
    with load(linear / "linear.kvc") as program:
        assert list(program.methods) == ["forward"]


def test_its_weights_come_from_the_checkpoint(linear):
    with (
        load(linear / "linear.kvc") as program,
        safe_open(linear / "linear.safetensors", "numpy") as weights,
    ):
        assert set(program.data) == set(weights.keys()) == {"weight", "bias"}
        for name in weights.keys():  # noqa: SIM118
            stored = program.data[name].array()
            assert np.array_equal(stored, weights.get_tensor(name))


@pytest.fixture(scope="module")
def total(tmp_path_factory):
    """The folder with a model of one's own, compiled; and what calling it printed."""
    folder = tmp_path_factory.mktemp("total")
    (folder / "total.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder, shell(folder, COMPILE_OWN)
    sys.modules.pop("total")


def test_a_model_of_ones_own_compiles_and_runs(total):
    _, called = total
    assert "result 0: float32[4]" in called


def test_its_session_is_kept_in_a_file(total):
    folder, _ = total
    kept = shell(folder, KEEP_OWN).splitlines()
    assert kept[0] == kept[2] == "result 0: float32[4]"
    once, twice = (np.fromstring(kept[i].strip("[]"), sep=" ") for i in (1, 3))
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-4)
    assert kept[4].startswith("total.session: a saved session")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The folder in which a tiny model of Hugging Face was saved and compiled."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "tiny").mkdir()
    (folder / "tiny" / "tokenizer.json").write_text(word_tokenizer(256))
    run_here(folder, TINY)
    return folder


def test_a_model_goes_through_the_exporters_of_transformers(tmp_path):
    assert run_here(tmp_path, EXPORTED) == "1\n"


def test_a_hugging_face_folder_becomes_a_bundle_that_answers(tiny):
    """The trained model itself answers in tests/real/test_readme_chat.py."""
    assert INSTALL == "pip install --no-warn-conflicts -e '.[hf]'\n"
    downloading, compiling, asking = CHATTING.splitlines()
    assert downloading.startswith("hf download HuggingFaceTB/SmolLM2-135M-Instruct ")
    assert downloading.endswith(" --local-dir SmolLM2")
    assert compiling == "kvc compile SmolLM2 -o smollm2.kvc"
    _, question, _, *chatting, bundle = shlex.split(asking)
    assert [*chatting, bundle] == ["kvc", "chat", "smollm2.kvc"]
    with contextlib.chdir(tiny):
        asked = ["chat", "tiny.kvc", "--max-tokens", "4"]
        done = CliRunner().invoke(main, asked, input=f"{question}\n")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip()


def test_a_hugging_face_folder_becomes_a_bundle_that_generates(tiny):
    (generating,) = re.findall(r"`(kvc generate smollm2.kvc [^`]*)`", README)
    assert shell(tiny, generating.replace("smollm2.kvc", "tiny.kvc"))


@pytest.fixture(scope="module")
def rows(tiny):
    """The folder in which the tiny model was compiled for several rows too."""
    shell(tiny, COMPILE_ROWS)
    return tiny


def test_it_may_have_several_rows(rows):
    with load(rows / "rows.kvc") as program, program.session(batch=3) as session:
        assert session.position.tolist() == [0, 0, 0]


def test_it_answers_several_prompts_at_a_time(rows):
    told = run(rows, ROWS).splitlines()
    assert [line.partition(":")[0] for line in told[:3]] == [
        "[5, 6, 7]", "[8]", "[9, 10]"
    ]  # fmt: skip
    # Weights are random: the tokens may be any, a stop token too.
    assert all(line.endswith(("(max_tokens)", "(stop)")) for line in told[:3])
    assert len(ast.literal_eval(told[3])) == 3


def test_it_gives_several_answers_and_searches_for_beams(rows):
    assert run(rows, BEAMS)


def test_weights_move_into_a_file_of_their_own_and_back(tmp_path):
    told = shell(tmp_path, MOVED)
    assert "whole.kvc" in told
    assert "removed 0 files" in told


def test_the_commands_that_set_up_everything_exist():
    for text in (DEMO, CHECKS):
        script = ROOT / text.strip()
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", script], check=True)
    assert (DEMO, CHECKS) == ("tools/dev/demo.sh\n", "tools/dev/test.sh\n")
    assert "`. .venv/bin/activate`" in README
    assert "tools/dev/test.sh" in (ROOT / ".ci/run").read_text()


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 200


def test_the_recipes_are_those_that_ship():
    named = re.findall(r"^\| `(\w+)` \| ", RECIPES, re.MULTILINE)
    assert set(named) >= {path.stem for path in (ROOT / "recipes").glob("*.toml")}
