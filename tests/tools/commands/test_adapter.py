import pytest
from hf_folders import random_tokens, save_folder, tiny_llama
from peft_adapters import save_adapter

from kvc.runtime import load


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a model's folder, a bundle with slots, and an adapter."""
    from click.testing import CliRunner

    from kvc.tools.cli import main

    home, model = tmp_path_factory.mktemp("adapter"), tiny_llama(num_hidden_layers=1)
    save_folder(home / "model", model)
    save_adapter(model, home / "poet")
    asked = "2,rank=4,dora"
    options = ["--adapters", asked, "--recipe", "cpu_fp32", "-o", str(home / "m.kvc")]
    made = CliRunner().invoke(main, ["compile", str(home / "model"), *options])
    assert made.exit_code == 0, made.output
    return home


def test_an_adapter_is_made_and_changes_what_is_generated(kvc, home, tmp_path):
    file = tmp_path / "poet.kva"
    made = kvc("adapter", home / "poet", "--base", home / "m.kvc", "-o", file)
    assert made.exit_code == 0, made.output
    assert "7 layers, rank 4, " in made.output
    prompt = " ".join(map(str, random_tokens(4)[0]))
    given = ("generate", home / "m.kvc", prompt, "-n", 6, "--temperature", 0)
    plain, adapted = kvc(*given), kvc(*given, "--adapter", file)
    assert plain.exit_code == adapted.exit_code == 0, adapted.output
    assert plain.stdout != adapted.stdout
    assert kvc(*given, "--adapter", f"{file},scale=0").stdout == plain.stdout
    with load(home / "m.kvc") as program:
        assert program.adapters.load(file).name == "poet"


def test_the_same_folder_gives_the_same_bytes(kvc, home, tmp_path):
    files = [tmp_path / "a.kva", tmp_path / "b.kva"]
    for file in files:
        kvc("adapter", home / "poet", "--base", home / "m.kvc", "-o", file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_dora_takes_the_model_and_says_if_it_lacks(kvc, home, tmp_path):
    save_adapter(tiny_llama(num_hidden_layers=1), tmp_path / "dora", use_dora=True)
    given = ("adapter", tmp_path / "dora", "--base", home / "m.kvc")
    output = ("-o", tmp_path / "d.kva")
    refused = kvc(*given, *output)
    assert refused.exit_code == 1
    assert "give its folder, with --model" in refused.output
    assert kvc(*given, "--model", home / "model", *output).exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "are numbers"),
        ("2,rank=4,rank=5", "are numbers"),
        ("2,runk=4", "expected COUNT"),
        ("2,dora=1", "expected COUNT"),
    ],
)
def test_wrong_slots_on_the_command_line(kvc, home, tmp_path, text, said):
    options = ("--adapters", text, "-o", tmp_path / "m.kvc")
    result = kvc("compile", home / "model", *options)
    assert result.exit_code == 2
    assert said in result.output


def test_wrong_adapters_on_the_command_line(kvc, home, tmp_path):
    given = ("generate", home / "m.kvc", "1 2", "-n", 1, "--adapter")
    assert "expected a number" in kvc(*given, "x.kva,scale=much").output
    assert "cannot read" in kvc(*given, tmp_path / "none.kva").output


def test_dump_shows_the_slots(kvc, home):
    text = kvc("dump", home / "m.kvc").output
    assert "slots for 2 adapters of up to rank 4, of 7 layers; no bytes here" in text
