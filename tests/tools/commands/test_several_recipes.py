"""Commands with a bundle for several backends."""

import json
from pathlib import Path

import pytest


def test_the_command_line_compiles_describes_and_runs_several(
    kvc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    model = "tiny_decoder:factory"
    made = kvc("compile", model, "--recipe", "xnnpack_q8,vulkan_q8", "-o", "m.kvc")
    assert made.exit_code == 0, made.output
    assert made.stderr.count("  recipe ") == 2
    assert all(f") by {one}\n" in made.stderr for one in ("xnnpack_q8", "vulkan_q8"))
    assert made.stderr.count("of state at most for each session") == 1
    text = kvc("dump", "m.kvc").stdout
    assert "RECIPES, of which load takes the first that can run" in text
    assert "below are those of xnnpack_q8" in text
    assert (
        "below are those of vulkan_q8"
        in kvc("dump", "m.kvc", "--backend", "vulkan").stdout
    )
    told = json.loads(kvc("dump", "m.kvc", "--json").stdout)
    assert [one["backend"] for one in told["recipes"]] == ["xnnpack", "vulkan"]
    nbytes = told["size"]["nbytes"]
    assert sum(part["nbytes"] for part in told["size"]["parts"]) == nbytes
    assert all(blob["methods"] for blob in told["blobs"])
    listing = kvc("dump", "m.kvc", "--ops", "decode", "--backend", "vulkan").stdout
    assert "vulkan" in listing
    refused = kvc("dump", "m.kvc", "--backend", "mps")
    assert refused.exit_code == 1
    assert "here xnnpack, vulkan" in refused.stderr
    checked = kvc("verify", "m.kvc")
    assert checked.exit_code == 0, checked.output


def test_packing_and_budgets_know_of_all_recipes(
    kvc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    command = ("compile", "tiny_decoder:factory", "-q", "-o", "m.kvc", "--recipe")
    packed = kvc(*command, "xnnpack_fp32,cpu_fp32", "--pack", "a:b")
    assert packed.exit_code == 1
    assert "the bundle has several" in packed.stderr
    tight = kvc(*command, "xnnpack_q8,vulkan_q8", "--max-ram", "1M")
    assert tight.exit_code == 1
    assert "a process of xnnpack_q8 with one session" in tight.stderr


def test_diff_tells_recipes_apart(kvc, tmp_path: Path):
    both, other = tmp_path / "both.kvc", tmp_path / "other.kvc"
    for path, recipes in (
        (both, "cpu_fp32,xnnpack_fp32"),
        (other, "cpu_fp32,vulkan_fp32"),
    ):
        kvc("compile", "tiny_decoder:factory", "-o", path, "--recipe", recipes)
    told = kvc("diff", both, other)
    assert told.exit_code == 1
    assert "recipe for xnnpack" in told.stdout
    same = kvc("diff", both, other, "--backend", "cpu", "--json")
    assert json.loads(same.stdout)["code"] == {}
    missing = kvc("diff", both, other, "--backend", "xnnpack")
    assert missing.exit_code == 2


def test_sample_results_are_those_of_every_recipe(kvc, tmp_path: Path):
    path = tmp_path / "m.kvc"
    command = ("compile", "tiny_decoder:factory", "-q", "--check", "-o", path)
    made = kvc(*command, "--recipe", "cpu_fp32,xnnpack_fp32")
    assert made.exit_code == 0, made.output
    for backend in ("cpu", "xnnpack"):
        checked = kvc("check", path, "--backend", backend)
        assert checked.exit_code == 0, checked.output
    wrong = kvc("check", path, "--backend", "vulkan")
    assert "here cpu, xnnpack" in wrong.stderr


def test_generation_takes_the_recipe_that_is_asked_for(kvc, tmp_path: Path):
    path = tmp_path / "m.kvc"
    recipes = ("--recipe", "cpu_fp32,xnnpack_fp32")
    kvc("compile", "tiny_decoder:factory", "-q", "-o", path, *recipes)
    texts = [
        kvc("generate", path, "hello", "--max-tokens", "5", "--backend", backend)
        for backend in ("cpu", "xnnpack")
    ]
    assert [one.exit_code for one in texts] == [0, 0], texts[0].output
    assert texts[0].stdout == texts[1].stdout
