"""What other settings would save, beside bundles compiled with these settings."""

import json

import pytest
import torch
from model_a import random_decoder

from kvc.compiler import Method, compile_program
from kvc.compiler.models.decoder import DecoderConfig
from kvc.recipes import load_recipe
from kvc.schema.container import BundleFile
from kvc.tools.reports.footprint import TORCH_NBYTES, describe_footprint
from kvc.tools.reports.savings import (
    describe_savings,
    describe_what_if,
    recipe_saving,
)

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
        assert (told.states, told.process) == (0, 0)


@pytest.mark.parametrize("recipe", ["cpu_fp32", "cpu_q8"])
def test_a_recipe_without_torch_saves_what_torch_takes(compiled, recipe):
    before, savings = savings_of(compiled("fp32"))
    after, _ = savings_of(compiled(recipe))
    told = savings[f"--recipe {recipe}"]
    assert told.process == TORCH_NBYTES
    assert told.process == pytest.approx(before.process - after.process, rel=0.01)
    assert told.memory >= TORCH_NBYTES + told.pages


class Words(torch.nn.Module):
    """Looks tokens up in a table that is much larger than the layer after it."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(8192, 64)
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, tokens):
        return self.layer(self.table(tokens))


def words(folder, recipe):
    method = Method("forward", (torch.zeros(1, 3, dtype=torch.int64),))
    compile_program(Words(), [method], recipe).save(folder / f"{recipe}.kvc")
    return folder / f"{recipe}.kvc"


def test_memory_saves_what_it_holds_of_a_table_the_file_all_of_it(kvc, tmp_path):
    now, then = words(tmp_path, "cpu_fp32"), words(tmp_path, "cpu_q8")
    before, savings = savings_of(now)
    after, _ = savings_of(then)
    told = savings["--recipe cpu_q8"]
    assert told.weights == pytest.approx(blob_nbytes(now) - blob_nbytes(then), rel=1e-3)
    assert told.pages == before.weights - after.weights
    assert told.memory < 0 < told.weights
    assert "--recipe cpu_q8" not in kvc("dump", now, "--what-if").stdout
    with BundleFile.open(now) as file:
        at = describe_footprint(file.program, {})
        found = describe_what_if(file.program, now.stat().st_size, at, "cpu_q8", "")
    assert found.memory_then.weights == after.weights > 3 * 65536  # three rows


class Flat(torch.nn.Module):
    """Multiplies with the weight of a convolution, which no recipe rounds."""

    def __init__(self):
        super().__init__()
        self.picture = torch.nn.Conv2d(3, 64, 8)
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, patches):
        made = torch.nn.functional.linear(patches, self.picture.weight.flatten(1))
        return self.layer(made)


def test_a_weight_of_another_shape_in_the_file_is_not_rounded(tmp_path):
    method = Method("forward", (torch.ones(3, 192),))
    for recipe in ("cpu_fp32", "cpu_q8"):
        path = tmp_path / f"{recipe}.kvc"
        compile_program(Flat(), [method], recipe).save(path)
    before, savings = savings_of(tmp_path / "cpu_fp32.kvc")
    after, left = savings_of(tmp_path / "cpu_q8.kvc")
    assert savings["--recipe cpu_q8"].weights == 64 * (64 * 3 - 4)
    assert savings["--recipe cpu_q8"].pages == before.weights - after.weights
    assert "--recipe cpu_q8" not in left


class Sorting(torch.nn.Module):
    """Has an operator that no backend takes."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x).bfloat16().sort().values


class Picture(torch.nn.Module):
    """Convolutions of all kinds, and a layer that is small beside them."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 64, 3, padding=1)  # of 27 weights a channel
        self.deep = torch.nn.Conv2d(64, 128, 3, padding=1)
        self.planes = torch.nn.Conv2d(128, 128, 9, padding=4, groups=128)
        self.turned = torch.nn.ConvTranspose2d(128, 64, 2, 2)
        self.apart = torch.nn.ConvTranspose2d(64, 32, 2, 2, groups=2)
        self.layer = torch.nn.Linear(32, 64)

    def forward(self, x):
        made = self.planes(self.deep(self.first(x).relu()).relu())
        return self.layer(self.apart(self.turned(made)).mean((2, 3)))


@pytest.mark.parametrize("start", ["cpu_fp32", "cpu_q8"])
@pytest.mark.parametrize("recipe", ["cpu_fp32", "cpu_bf16", "cpu_q8", "cpu_q4"])
def test_what_convolutions_would_save_is_what_they_save(tmp_path, start, recipe):
    method = Method("forward", (torch.zeros(1, 3, 8, 8),))
    for name in {start, recipe}:
        compile_program(Picture(), [method], name).save(tmp_path / name)
    with BundleFile.open(tmp_path / start) as file:
        at = describe_footprint(file.program, {})
        told = recipe_saving(file.program, recipe, at.sizes, at.tokens)
    saved = blob_nbytes(tmp_path / start) - blob_nbytes(tmp_path / recipe)
    assert told.weights == pytest.approx(saved, abs=1500)
    if {start, recipe} == {"cpu_fp32", "cpu_q8"}:
        assert abs(saved) > 3 * (64 * 128 * 9 + 128 * 64 * 4)


def test_where_no_backend_takes_an_operator_torch_stays(tmp_path):
    method = Method("forward", (torch.ones(3, 64),))
    compile_program(Sorting(), [method], "fp32").save(tmp_path / "sorting.kvc")
    _, savings = savings_of(tmp_path / "sorting.kvc")
    assert savings["--recipe cpu_q8"].process == 0
    assert "--recipe cpu_fp32" not in savings


@pytest.mark.parametrize(
    ("start", "recipe", "cache"),
    [
        ("fp32", "cpu_q4", "int8"),
        ("cpu_fp32", "cpu_q8", None),
        ("cpu_q4", "fp32", None),
        ("cpu_q8", "", "float16"),
    ],
)
def test_what_a_bundle_would_take_is_what_it_takes(compiled, start, recipe, cache):
    now, then = compiled(start), compiled(recipe or start, cache)
    sizes = {"capacity": 640, "tokens": 100, "seq": 16}
    with BundleFile.open(now) as file:
        at = describe_footprint(file.program, sizes)
        told = describe_what_if(
            file.program, now.stat().st_size, at, recipe, cache or ""
        )
    found, _ = savings_of(then, **sizes)
    assert told.file_then == pytest.approx(then.stat().st_size, rel=0.05)
    assert told.memory_then.weights == pytest.approx(found.weights, rel=0.01)
    assert told.memory_then.process == pytest.approx(found.process, rel=0.02)
    assert (told.memory_then.states, told.memory_then.token) == (
        found.states,
        found.token,
    )


def test_the_option_of_compile(kvc, compiled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = compiled("fp32")
    asked = ("compile", path, "--what-if", "recipe=cpu_q4,cache=int8")
    lines = kvc(*asked, "--at", "tokens=8").stdout.splitlines()
    assert lines[0].split() == ["now", "then"]
    assert [line.split()[0] for line in lines[1:3]] == ["file", "memory"]
    assert "states with 8 tokens" in lines[4]
    assert list(tmp_path.iterdir()) == []
    for other in (("-o", "x.kvc"), ("--recipe", "fp32"), ("-q",)):
        done = kvc(*asked, *other)
        assert done.exit_code == 2
        assert "--what-if writes nothing: leave " in done.stderr
    for wrong in ("recipe", "depth=3", "recipe=fp32,recipe=fp32", ""):
        assert kvc("compile", path, "--what-if", wrong).exit_code == 2
    done = kvc("compile", path, "--what-if", "recipe=cpu_q3")
    assert done.exit_code == 1
    assert "cpu_q4" in done.stderr
    done = kvc("compile", compiled("cpu_q4", "int8"), "--what-if", "cache=float16")
    assert "no cache of this bundle could be smaller" in done.stderr


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
