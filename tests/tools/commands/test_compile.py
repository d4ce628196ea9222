import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from calibrated_backend import recipe, register_fixed_point
from click.testing import CliRunner
from named_bytes import SMALL, save_data

from kvc.schema.container import BundleFile
from kvc.schema.text import size
from kvc.tools.cli import main


def test_the_closing_table_says_what_was_made(kvc, tmp_path):
    out = tmp_path / "out.kvc"
    result = kvc("compile", "tiny_decoder:factory", "--recipe", "cpu_q8", "-o", out)
    assert result.exit_code == 0, result.output
    assert out.is_file()
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    stages = [line.partition("] ")[2] for line in lines if line.startswith("[ ")]
    assert stages[:3] == ["importing torch", "loading the model", "capture: prefill"]
    lines = [line for line in lines if not line.startswith("[ ")]
    assert lines[0].endswith("out.kvc")
    labels = [line[2:9].strip() for line in lines[1:]]
    assert [label for label in labels if label] == [
        "methods",
        "recipe",
        "cpu",
        "needs",
        "weights",
        "file",
        "memory",
        "time",
    ]
    assert any("decode: 1 partition, none left to PyTorch" in line for line in lines)
    with BundleFile.open(out) as file:
        inside = {
            file.program.methods[part.method].name: size(part.workspace_nbytes)
            for part in file.program.delegates
        }
    told = ", ".join(f"{method} {nbytes}" for method, nbytes in inside.items())
    assert any(line.endswith(f" inside partitions ({told})") for line in lines)


def test_quiet_is_quiet(kvc, tmp_path):
    result = kvc("compile", "tiny_decoder:factory", "-q", "-o", tmp_path / "a.kvc")
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            "nope",
            "no such folder, and kvc downloads nothing from a hub; give the path of a",
        ),
        ("some/nope", "there is no such folder, and kvc downloads nothing"),
        (
            "Org/Model-1.5B",
            "`hf download Org/Model-1.5B --local-dir Model-1.5B`, and give that folder",
        ),
        ("my/model.py:factory", "named as imports do: my.model:factory"),
        (__file__, "the model, test_compile:factory"),
        (
            str(Path(__file__).parents[3] / "LICENSE"),
            "it is a file; a model's weights need the folder",
        ),
        (
            "no_such_module:f",
            "importing no_such_module failed with ModuleNotFoundError",
        ),
        ("tiny_decoder:nope", "module tiny_decoder has no function 'nope'"),
        ("tiny_decoder:NUMBER", "module tiny_decoder has no function 'NUMBER'"),
        (
            "tiny_decoder:no_spec",
            "its factory returned int, not kvc.compiler.ModelSpec",
        ),
        (":", "before and after the colon"),
        ("a..b:f", "importing a..b failed"),
    ],
)
def test_a_model_that_cannot_be_found(kvc, tmp_path, model, reason):
    result = kvc("compile", model, "-o", tmp_path / "a.kvc")
    assert result.exit_code == 1
    assert reason in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_factory_that_fails_names_the_line(kvc, tmp_path):
    result = kvc("compile", "tiny_decoder:failing", "-o", tmp_path / "a.kvc")
    assert result.exit_code == 1
    assert "RuntimeError: no such checkpoint (" in result.stderr
    assert "Hugging Face folder" not in result.stderr
    assert "tiny_decoder.py:" in result.stderr


def test_without_a_recipe_the_default_is_named(kvc, tmp_path):
    result = kvc("compile", "tiny_decoder:factory", "-o", tmp_path / "a.kvc")
    assert "  cpu_fp32, as no --recipe was given" in result.stderr
    asked = ("--recipe", "cpu_fp32", "-o", tmp_path / "b.kvc")
    result = kvc("compile", "tiny_decoder:factory", *asked)
    assert "--recipe" not in result.stderr
    assert (tmp_path / "a.kvc").read_bytes() == (tmp_path / "b.kvc").read_bytes()


def test_an_unknown_recipe_lists_those_that_exist(kvc, tmp_path):
    result = kvc("compile", "demo", "--recipe", "q3", "-o", tmp_path / "a.kvc")
    assert result.exit_code == 1
    assert "no recipe 'q3'; there are: bf16, coreai_fp16, " in result.stderr
    assert " cpu_q4, cpu_q8, " in result.stderr


def test_caches_are_stored_as_asked(kvc, tmp_path):
    out = tmp_path / "a.kvc"
    asked = (
        "compile",
        "tiny_decoder:factory",
        "-q",
        "--cache-dtype",
        "int8",
        "-o",
        out,
    )
    result = kvc(*asked)
    assert (result.exit_code, result.output) == (0, "")
    states = kvc("dump", out, "--states").stdout
    assert "layers.0.attn.k_cache        int8[1, 1, 24, 16]  linear, 2" in states
    assert "layers.0.attn.k_cache.scale  float32[1, 1, 24]   linear, 2" in states
    copies = kvc("dump", out, "--copies").stdout
    assert "layers.0.attn.v_cache.scale  SAFE" in copies
    assert "all in place" in copies
    # 24 rows of 16 bytes and a scale of 4, twice; and the position.
    assert "one session: 968 B of state" in kvc("dump", out, "--memory").stdout


def test_caches_are_stored_in_half_the_bytes(kvc, tmp_path):
    out = tmp_path / "a.kvc"
    asked = ("compile", "tiny_decoder:factory", "-q", "--cache-dtype", "float16")
    result = kvc(*asked, "-o", out)
    assert (result.exit_code, result.output) == (0, "")
    states = kvc("dump", out, "--states").stdout
    assert "layers.0.attn.k_cache  float16[1, 1, 24, 16]  linear, 2" in states
    assert "all in place" in kvc("dump", out, "--copies").stdout
    # 24 rows of 16 halves, twice; and the position.
    assert "one session: 1.54 kB of state" in kvc("dump", out, "--memory").stdout
    assert kvc("verify", out).exit_code == 0


def test_an_output_that_cannot_be_written_is_refused_at_once(kvc, tmp_path):
    result = kvc("compile", "demo", "-o", tmp_path / "none" / "a.kvc")
    assert result.exit_code == 1
    assert f"the folder {tmp_path}/none does not exist" in result.stderr
    for folder in (tmp_path, f"{tmp_path}/new/"):
        result = kvc("compile", "demo", "-o", folder)
        assert result.exit_code == 1
        assert "it is a folder" in result.stderr
    result = kvc("compile", "demo", "-o", "")
    assert result.exit_code == 1
    assert "give the name of a file" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("failing", r"failed with RuntimeError: no such checkpoint \(\S+"),
        ("failing_within", r"failed with JSONDecodeError: Expecting value: .* \(\S+"),
        ("unsaid", r"failed with Unsaid \(\S+"),
    ],
)
def test_a_factory_that_fails_is_told_with_the_users_line(kvc, tmp_path, factory, says):
    result = kvc("compile", f"tiny_decoder:{factory}", "-o", tmp_path / "a.kvc")
    assert result.exit_code == 1
    assert re.search(rf"its factory {says}tiny_decoder\.py:\d+\)", result.stderr)
    assert "folder" not in result.stderr


def test_a_factory_that_ends_the_process_says_so(kvc, tmp_path):
    result = kvc("compile", "tiny_decoder:leaving", "-o", tmp_path / "a.kvc")
    assert result.exit_code == 1
    assert "its factory ended with exit(3) (" in result.stderr
    assert "tiny_decoder.py:" in result.stderr


def test_a_module_that_ends_the_process_says_so(kvc, tmp_path, monkeypatch):
    (tmp_path / "leaver.py").write_text("import sys\nsys.exit('bye')\n")
    monkeypatch.chdir(tmp_path)
    result = kvc("compile", "leaver:factory")
    assert result.exit_code == 1
    assert "importing leaver failed with exit('bye') (" in result.stderr
    assert "leaver.py:2)" in result.stderr


def test_a_copy_budget_is_given_by_method(kvc, tmp_path):
    out = tmp_path / "a.kvc"
    budget = ("--max-copy-bytes", "decode=0", "--max-copy-bytes", "prefill=0")
    result = kvc("compile", "tiny_decoder:factory", "-q", "-o", out, *budget)
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize("text", ["decode", "decode=", "=5", "decode=-1", "decode=x"])
def test_a_copy_budget_that_is_none_is_refused(kvc, tmp_path, text):
    out = tmp_path / "a.kvc"
    result = kvc("compile", "tiny_decoder:factory", "-o", out, "--max-copy-bytes", text)
    assert result.exit_code != 0
    assert "expected METHOD=N" in result.output
    assert not out.exists()


@pytest.fixture(scope="module")
def external(tmp_path_factory):
    """A folder with a bundle a.kvc and its data file, and what compiling it said."""
    folder = tmp_path_factory.mktemp("external")
    out = ("-o", str(folder / "a.kvc"))
    command = ["compile", "tiny_decoder:factory", "--data", "external", *out]
    return folder, CliRunner().invoke(main, command)


def test_weights_go_to_a_file_of_their_own_and_are_reused(kvc, tmp_path, external):
    folder, result = external
    assert result.exit_code == 0, result.output
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (data,) = tmp_path.glob("a-*.kvd")
    assert f"data     {data.name}, " in result.stderr
    assert f"({data.stat().st_size:,} bytes)" in result.stderr
    out = ("-o", tmp_path / "b.kvc")
    result = kvc("compile", "tiny_decoder:untold", "--reuse", data, *out)
    assert result.exit_code == 0, result.output
    assert f"reused   65.2 kB of weights in {data.name}" in result.stderr
    assert [path.name for path in tmp_path.glob("*.kvd")] == [data.name]


def test_a_reused_file_in_another_folder_is_warned_of(kvc, tmp_path, external):
    shutil.copytree(external[0], tmp_path / "lib")
    (data,) = (tmp_path / "lib").glob("a-*.kvd")
    for output, warned in (
        (tmp_path / "m.kvc", True),
        (data.with_name("b.kvc"), False),
    ):
        options = ("-q", "--reuse", data, "-o", output)
        result = kvc("compile", "tiny_decoder:untold", *options)
        assert result.exit_code == 0, result.output
        folder = tmp_path / "lib"
        text = f"warning: {data} is not beside {output}, which loads only with"
        assert (text in result.stderr) == warned
        assert (
            f"--data-folder {folder}, and kvc gc {folder}" in result.stderr
        ) == warned


def test_a_data_file_is_refused_as_an_output_before_the_work(kvc, tmp_path):
    data = Path(save_data(tmp_path / "m.kvc", SMALL, external=True).data_path)
    result = kvc("compile", "nope", "-o", data)
    assert result.exit_code == 1
    assert "a data file is there" in result.stderr


def test_names_that_a_bundle_cannot_tell_are_refused_before_the_work(kvc, tmp_path):
    data = Path(save_data(tmp_path / "m.kvc", SMALL, external=True).data_path)
    other = save_data(tmp_path / "other.kvc", {"x": b"1"}, external=True)
    (tmp_path / "sub").mkdir()
    same = Path(other.data_path).rename(tmp_path / "sub" / data.name)
    strange = tmp_path / "my weights.kvd"
    strange.write_bytes(data.read_bytes())
    for reuse in (["--reuse", strange], ["--reuse", data, "--reuse", same]):
        result = kvc("compile", "nope", *reuse, "-o", tmp_path / "out.kvc")
        assert result.exit_code == 1
        assert "its name is taken, or not plain" in result.stderr


def test_a_file_that_cannot_be_reused_is_refused_at_once(kvc, tmp_path):
    out = tmp_path / "a.kvc"
    # The model would fail too, but later.
    result = kvc("compile", "nope", "--reuse", tmp_path / "no.kvd", "-o", out)
    assert result.exit_code == 1
    assert "no.kvd: No such file or directory" in result.stderr
    (tmp_path / "no.kvd").write_bytes(bytes(200))
    result = kvc("compile", "nope", "--reuse", tmp_path / "no.kvd", "-o", out)
    assert result.exit_code == 1
    assert "no.kvd: not a kvc file" in result.stderr
    result = kvc("compile", "nope", "--data", "outside", "-o", out)
    assert result.exit_code == 2
    assert "'outside' is not one of 'internal', 'external'" in result.stderr


def test_a_recipe_or_model_that_was_misspelled_is_offered(kvc, tmp_path):
    wrong = kvc("compile", "demo", "--recipe", "xnnpak_q8", "-o", tmp_path / "a.kvc")
    assert "no recipe 'xnnpak_q8' (did you mean 'xnnpack_q8'?)" in wrong.stderr
    wrong = kvc("compile", "dmeo", "-o", tmp_path / "a.kvc")
    assert "did you mean 'demo'?" in wrong.stderr


def test_a_name_of_a_hub_says_what_to_do_before_where_to_write(
    kvc, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    wrong = kvc("compile", "Org/Model")
    assert "downloads nothing from a hub; if it is a model there" in wrong.stderr
    assert list(tmp_path.iterdir()) == []


def test_samples_calibrate_and_the_bundle_says_with_what(kvc, tmp_path, monkeypatch):
    register_fixed_point(monkeypatch)
    sample, out = tmp_path / "sample.txt", tmp_path / "a.kvc"
    sample.write_text("some text, and some more of it\n" * 4)
    made = ("tiny_decoder:factory", "--recipe", recipe(tmp_path), "-o", out)
    result = kvc("compile", *made, "--calibrate", sample)
    assert result.exit_code == 0, result.output
    digest = hashlib.sha256(sample.read_bytes()).hexdigest()
    shown = kvc("dump", out).output
    used = "calibrated by minmax with 5 samples (120 tokens) of text"
    assert f"{used}, SHA-256 {digest[:16]}" in shown.splitlines()
    told = json.loads(kvc("dump", out, "--json").output)
    assert told["file"]["calibration"]["digest"] == digest


def test_the_model_may_make_the_samples(kvc, tmp_path, monkeypatch):
    register_fixed_point(monkeypatch)
    made = ("tiny_decoder:factory", "--recipe", recipe(tmp_path), "-o", tmp_path / "a")
    result = kvc("compile", *made, "--calibrate", "generated")
    assert result.exit_code == 0, result.output
    assert "generate: text 1 of 8" in result.stderr


def test_samples_are_refused_before_the_work(kvc, tmp_path):
    for given, words in (
        (tmp_path / "none.txt", "cannot be read"),
        (Path(__file__), "recipe cpu_q8 has no use for samples"),
    ):
        made = ("tiny_decoder:factory", "--recipe", "cpu_q8", "-o", tmp_path / "a.kvc")
        result = kvc("compile", *made, "--calibrate", given)
        assert result.exit_code == 1
        assert words in result.stderr
        assert "capture" not in result.stderr
