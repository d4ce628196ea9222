"""`kvc compile FOLDER`: from a folder as it is published to a bundle."""

import json

import pytest
from daily import RARELY
from hf_folders import save_folder, tiny_llama
from hf_models import WINDOW, build
from sample_programs import write_sample

from kvc.runtime import load
from kvc.schema.rings import Window
from kvc.tools.outputs import check_bundle_output


@pytest.fixture
def folder(tmp_path):
    return save_folder(tmp_path / "tiny-llama", tiny_llama(num_hidden_layers=1))


def test_a_folder_becomes_a_bundle_of_its_name(kvc, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--max-length", 32, "--prefill-chunk", 8, "--prefill-size", 4)
    result = kvc("compile", f"{folder}/", *options)
    assert result.exit_code == 0, result.output
    assert "cpu_q8, as no --recipe was given" in result.stderr
    with load(tmp_path / "tiny-llama.kvc") as program:
        assert list(program.methods) == ["prefill", "decode", "prefill_4"]
        assert json.loads(program.metadata["architecture"]) == "llama"
        assert "tokenizer.json" in program.files
        with program.session() as chat:
            assert chat.capacity == 32


def test_a_folder_compiled_for_rows_answers_several_prompts(kvc, folder, tmp_path):
    out = tmp_path / "rows.kvc"
    options = ("--max-length", 32, "--max-batch", 2, "-o", out)
    assert kvc("compile", folder, *options).exit_code == 0
    prompts = ("the cat", "a dog and")
    together = kvc("generate", out, *prompts, "-n", 5)
    assert together.exit_code == 0, together.output
    alone = [kvc("generate", out, prompt, "-n", 5).stdout for prompt in prompts]
    shown = [f"> {p}\n{text}" for p, text in zip(prompts, alone, strict=True)]
    assert together.stdout == "\n".join(shown)
    assert "takes 1..2 at a time" in kvc("generate", out, "a", "b", "c").stderr


def test_layers_with_a_window_become_rings(kvc, tmp_path):
    folder = save_folder(tmp_path / "mistral", build("mistral", shallow=True))
    options = ("--max-length", 64, "--prefill-chunk", 6, "--slack", 3)
    result = kvc("compile", folder, *options, "-o", tmp_path / "m.kvc")
    assert result.exit_code == 0, result.output
    with load(tmp_path / "m.kvc") as program, program.session() as session:
        assert program.states["kvc_cache.0.keys"].window == Window(WINDOW)
        assert program.states["kvc_cache.0.keys"].type.dims[2] == WINDOW + 6 - 1 + 3
        assert (session.longest_call, session.capacity) == (9, 64)
    assert "--slack changes nothing" not in result.stderr


@RARELY  # every day with a window, below
def test_slack_that_no_layer_needs_is_said(kvc, folder, tmp_path):
    result = kvc("compile", folder, "--slack", 3, "-o", tmp_path / "m.kvc")
    assert result.exit_code == 0, result.output
    assert "warning: --slack changes nothing: every layer keeps all" in result.stderr


def test_a_window_and_first_positions_make_texts_of_any_length(kvc, folder, tmp_path):
    out, options = tmp_path / "m.kvc", ("--prefill-chunk", 6, "--window", 8)
    with pytest.warns(UserWarning, match="it was made for texts of up to 128"):
        result = kvc("compile", folder, *options, "--keep", 2, "-o", out)
    assert result.exit_code == 0, result.output
    assert "no layer keeps" not in result.stderr
    assert "ring, window 8 and the first 2" in kvc("dump", out).stdout
    made = kvc("generate", out, "the cat", "-n", 200, "--min-tokens", 200)
    assert made.exit_code == 0, made.output
    with load(out) as program, program.session() as session:
        assert (session.longest_call, session.capacity) == (6, None)


def test_a_window_that_no_layer_needs_is_said(kvc, folder, tmp_path):
    out, options = tmp_path / "m.kvc", ("--max-length", 32, "--window", 30)
    options += ("--slack", 3)
    result = kvc("compile", folder, *options, "--keep", 2, "-o", out)
    assert result.exit_code == 0, result.output
    assert "warning: --slack changes nothing: every layer keeps all" in result.stderr
    assert "warning: no layer keeps a window of 30 and the first 2" in result.stderr


def test_first_positions_need_a_window(kvc, folder, tmp_path):
    result = kvc("compile", folder, "--keep", 2, "-o", tmp_path / "m.kvc")
    assert result.exit_code == 2
    assert "give --window N" in result.stderr
    assert "importing torch" not in result.stderr


@pytest.mark.parametrize("kind", ["no weights", "no folder", "a pickle"])
def test_a_folder_that_cannot_be_used_leaves_nothing(kvc, folder, tmp_path, kind):
    weights = folder / "model.safetensors"
    if kind == "a pickle":
        weights.rename(folder / "pytorch_model.bin")
    elif kind == "no weights":
        weights.unlink()
    else:
        (folder / "config.json").unlink()
    result = kvc("compile", folder, "-o", tmp_path / "out.kvc")
    assert result.exit_code == 1
    message = {
        "no weights": "the folder has neither model.safetensors nor",
        "no folder": "cannot read config.json: No such file",
        "a pickle": "is a pickle, which can run any code",
    }
    assert message[kind] in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny-llama"]


def test_a_file_of_the_model_is_not_replaced(kvc, folder):
    weights = folder / "model.safetensors"
    before = weights.read_bytes()
    result = kvc("compile", folder, "-o", weights)
    assert result.exit_code == 1
    assert "it is a file of the model; give another name" in result.stderr
    assert weights.read_bytes() == before


@pytest.mark.parametrize("command", ["compile", "join", "split"])
def test_a_file_that_is_no_bundle_is_not_replaced(kvc, tmp_path, command):
    bundle, other = tmp_path / "a.kvc", tmp_path / "model.py"
    write_sample(bundle)
    other.write_text("content")
    result = kvc(command, "demo" if command == "compile" else bundle, "-o", other)
    assert result.exit_code == 1
    assert "another file is there; give another name, or remove it" in result.stderr
    assert other.read_text() == "content"


@pytest.mark.parametrize("content", [b"", b"half a bundle"])
def test_what_is_empty_or_named_like_a_bundle_is_replaced(tmp_path, content):
    path = tmp_path / ("model.kvc" if content else "made by mktemp")
    path.write_bytes(content)
    assert check_bundle_output(str(path)) == path


def test_a_bundle_in_the_models_folder_is_replaced(folder):
    write_sample(folder / "a.kvc")
    assert check_bundle_output(str(folder / "a.kvc"), folder) == folder / "a.kvc"
    assert check_bundle_output(str(folder / "new.kvc"), folder) == folder / "new.kvc"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--max-length", 32), "--max-length goes with"),
        (("--slack", 2), "--slack goes with"),
        (("--slack", 0), "--slack goes with"),
        (("--prefill-size", 4, "--all-logits"), "--prefill-size, --all-logits go with"),
        (("--max-batch", 4), "--max-batch goes"),
        (("--window", 4, "--keep", 0), "--window, --keep go with"),
    ],
)
def test_options_of_folders_are_refused_for_others(kvc, tmp_path, options, named):
    out = tmp_path / "out.kvc"
    result = kvc("compile", "tiny_decoder:factory", *options, "-o", out)
    assert result.exit_code == 2
    assert named in result.stderr
    assert "importing torch" not in result.stderr, "that takes seconds"
    assert not out.exists()


def test_a_length_beyond_the_model_is_refused(kvc, folder, tmp_path):
    out = tmp_path / "out.kvc"
    result = kvc("compile", folder, "--max-length", 500, "-o", out)
    assert result.exit_code == 1
    assert "at most 128, the model's own limit" in result.stderr
    assert not out.exists()
