"""What other settings would save, beside bundles compiled with these settings."""

import json

import pytest
from model_a import random_decoder

from kvc.compiler import compile_program
from kvc.compiler.models.decoder import DecoderConfig
from kvc.recipes import load_recipe
from kvc.schema.container import BundleFile
from kvc.tools.reports.footprint import describe_footprint
from kvc.tools.reports.savings import describe_savings

CONFIG = DecoderConfig(
    vocab=2048, dim=256, layers=2, heads=8, kv_heads=2, ffn=512, capacity=1024
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compile the model by a recipe and a dtype of caches: a path, each once."""
    spec = random_decoder(CONFIG)
    folder = tmp_path_factory.mktemp("savings")

    def compiled_(recipe, cache=None):
        path = folder / f"{recipe}-{cache}.kvc"
        if not path.exists():
            loaded = load_recipe(recipe, cache)
            compile_program(spec.model, spec.methods, loaded, states=spec.states).save(
                path
            )
        return path

    return compiled_


def savings_of(path, **sizes):
    with BundleFile.open(path) as file:
        found = describe_footprint(file.program, sizes)
        savings = describe_savings(file.program, found.sizes, found.tokens)
    return found, {one.setting: one for one in savings}


def blob_nbytes(path):
    with BundleFile.open(path) as file:
        return sum(blob.nbytes for blob in file.program.blobs)


@pytest.mark.parametrize("start", ["cpu_fp32", "cpu_q8"])
@pytest.mark.parametrize("recipe", ["cpu_bf16", "cpu_q8", "cpu_q4"])
def test_what_a_recipe_would_save_is_what_it_saves(compiled, start, recipe):
    _, savings = savings_of(compiled(start))
    before, after = blob_nbytes(compiled(start)), blob_nbytes(compiled(recipe))
    told = savings.get(f"--recipe {recipe}")
    if start == "cpu_q8" and recipe != "cpu_q4":
        assert told is None
    else:
        assert told.weights == pytest.approx(before - after, rel=1e-3)
        assert told.states == 0


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_what_smaller_caches_would_save_is_what_they_save(compiled, dtype):
    sizes = {"capacity": 640, "tokens": 100}
    before, savings = savings_of(compiled("cpu_fp32"), **sizes)
    after, left = savings_of(compiled("cpu_fp32", dtype), **sizes)
    assert savings[f"--cache-dtype {dtype}"].states == before.states - after.states
    assert f"--cache-dtype {dtype}" not in left


def test_the_table_and_its_json(kvc, compiled):
    path = compiled("cpu_fp32")
    text = kvc("dump", path, "--what-if", "--at", "tokens=8").stdout
    assert text.startswith("MEMORY AT ")
    assert "OTHER SETTINGS of kvc compile" in text
    order = [line.split()[1] for line in text.splitlines() if " less" in line]
    assert order[0] == "cpu_q4"
    told = json.loads(kvc("dump", path, "--what-if", "--json").stdout)["savings"]
    assert told[0]["setting"] == "--recipe cpu_q4"
    assert "savings" not in json.loads(kvc("dump", path, "--at", "", "--json").stdout)


def test_nothing_to_save(kvc, compiled):
    path = compiled("cpu_q4", "int8")
    assert "nothing that a recipe changes" in kvc("dump", path, "--what-if").stdout
