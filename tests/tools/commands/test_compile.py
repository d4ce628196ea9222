import pytest


def test_the_closing_table_says_what_was_made(kvc, tmp_path):
    out = tmp_path / "out.kvc"
    result = kvc("compile", "tiny_decoder:factory", "--recipe", "bf16", "-o", out)
    assert result.exit_code == 0, result.output
    assert out.is_file()
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].endswith("out.kvc")
    labels = [line[2:9].strip() for line in lines[1:]]
    assert [label for label in labels if label] == [
        "methods",
        "recipe",
        "weights",
        "file",
        "memory",
        "time",
    ]


def test_quiet_is_quiet(kvc, tmp_path):
    result = kvc("compile", "tiny_decoder:factory", "-q", "-o", tmp_path / "a.kvc")
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("nope", "it is not built in; give a built-in name (demo)"),
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
    assert "tiny_decoder.py:" in result.stderr


def test_an_unknown_recipe_lists_those_that_exist(kvc, tmp_path):
    result = kvc("compile", "demo", "--recipe", "q3", "-o", tmp_path / "a.kvc")
    assert result.exit_code == 1
    assert "no recipe 'q3'; there are: bf16, fp32, xnnpack_q8" in result.stderr


def test_an_output_that_cannot_be_written_is_refused_at_once(kvc, tmp_path):
    result = kvc("compile", "demo", "-o", tmp_path / "none" / "a.kvc")
    assert result.exit_code == 1
    assert f"the folder {tmp_path}/none does not exist" in result.stderr
    result = kvc("compile", "demo", "-o", tmp_path)
    assert result.exit_code == 1
    assert "it is a folder" in result.stderr
