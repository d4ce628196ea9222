"""`kvc compile --max-file`, `--max-ram`, `--max-state`: limits of a new bundle."""

import re

import pytest
import torch
from click.testing import CliRunner
from model_a import random_decoder

from kvc.compiler import Method, compile_program
from kvc.compiler.models.decoder import DecoderConfig
from kvc.schema.container import BundleFile
from kvc.schema.errors import BudgetExceeded
from kvc.tools.budgets import Budgets
from kvc.tools.cli import main
from kvc.tools.reports.footprint import describe_footprint

CONFIG = DecoderConfig(
    vocab=64, dim=64, layers=2, heads=4, kv_heads=2, ffn=64, capacity=1024
)
MODEL = ("compile", "tiny_decoder:factory", "--recipe", "cpu_fp32", "-q")


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """What the tiny decoder takes: option -> bytes."""
    path = tmp_path_factory.mktemp("budgets") / "tiny.kvc"
    done = CliRunner().invoke(main, [*MODEL, "-o", str(path)])
    assert done.exit_code == 0, done.output
    with BundleFile.open(path) as file:
        found = describe_footprint(file.program, {})
    size = path.stat().st_size
    return {"--max-file": size, "--max-ram": found.total, "--max-state": found.states}


OPTIONS = ("--max-file", "--max-ram", "--max-state")


@pytest.mark.parametrize("option", OPTIONS)
def test_a_bundle_within_its_budget_is_written(kvc, taken, tmp_path, option):
    path = tmp_path / "tiny.kvc"
    done = kvc(*MODEL, "-o", path, option, taken[option])
    assert done.exit_code == 0, done.output
    assert path.stat().st_size == taken["--max-file"]


@pytest.mark.parametrize("option", OPTIONS)
def test_a_byte_too_many_writes_nothing(kvc, taken, tmp_path, option):
    path = tmp_path / "tiny.kvc"
    path.write_bytes(b"")
    done = kvc(*MODEL, "-o", path, option, taken[option] - 1)
    assert done.exit_code == 1
    assert f"takes {taken[option]:,} bytes" in done.output
    assert f"but {taken[option] - 1:,} are allowed; nothing was written" in done.output
    assert "the most of it:" in done.output
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.kvc"]
    assert path.read_bytes() == b""


def test_data_files_count_and_are_not_left(kvc, taken, tmp_path):
    path, apart = tmp_path / "tiny.kvc", ("--data", "external")
    least = taken["--max-file"] // 2
    done = kvc(*MODEL, "-o", path, *apart, "--max-file", least)
    assert done.exit_code == 1
    assert list(tmp_path.iterdir()) == []
    done = kvc(*MODEL, "-o", path, *apart)
    whole = sum(file.stat().st_size for file in tmp_path.iterdir())
    done = kvc(*MODEL, "-o", path, *apart, "--max-file", whole)
    assert done.exit_code == 0, done.output


def test_what_would_help_is_said_and_helps(tmp_path):
    spec = random_decoder(CONFIG)
    methods = spec.methods[-1:]
    bundle = compile_program(spec.model, methods, "cpu_fp32", states=spec.states)

    def save(**sizes):
        budgets = Budgets(file=None, ram=None, state=200_000, sizes=sizes)
        bundle.save(tmp_path / "model.kvc", accept=budgets.check)

    with pytest.raises(BudgetExceeded) as caught:
        save(capacity=1024)
    error = caught.value
    assert error.what.startswith("a session at capacity = 1,024")
    assert (error.nbytes, error.allowed) == (524_296, 200_000)
    assert "layers.{0..1}.attn.k_cache" in error.listing
    assert "--cache-dtype int8" in error.listing
    fits = re.search(r"capacity=([\d,]+) would fit", error.listing)
    save(capacity=int(fits[1]))
    with pytest.raises(BudgetExceeded):
        save(capacity=int(fits[1]) + 1)


@pytest.fixture(scope="module")
def plain():
    """A bundle, not saved, that PyTorch runs."""
    spec = random_decoder(CONFIG)
    return compile_program(spec.model, spec.methods, "fp32", states=spec.states)


@pytest.mark.parametrize(
    ("limit", "named", "change"),
    [
        ("file", ["layers.{0..1}.ffn.up.weight: float32[64, 64]"], "--recipe cpu_q8"),
        (
            "state",
            ["layers.{0..1}.attn.k_cache: float32[1, 2, capacity, 16]"],
            "--cache-dtype int8",
        ),
        (
            "ram",
            [
                "the process itself",
                "layers.{0..1}.attn.k_cache: float32[1, 2, capacity, 16]",
                "scratch of methods, in which ",
                " at kvc.compiler.models.decoder:",
            ],
            "--recipe cpu_q8",
        ),
    ],
)
def test_the_tensors_that_take_the_most_are_named_with_what_to_change(
    plain, tmp_path, limit, named, change
):
    none = {"file": None, "ram": None, "state": None}
    budgets = Budgets(**none | {limit: 1000}, sizes={})
    with pytest.raises(BudgetExceeded) as caught:
        plain.save(tmp_path / "plain.kvc", accept=budgets.check)
    taken, _, changes = caught.value.listing.partition("other settings would save:")
    for text in named:
        assert text in taken
    assert change in changes


def test_amounts_and_sizes_that_are_none(kvc, tmp_path):
    path = tmp_path / "tiny.kvc"
    done = kvc(*MODEL, "-o", path, "--max-ram", "much")
    assert done.exit_code == 2
    assert "--max-ram" in done.output
    assert "'much'" in done.output
    done = kvc(*MODEL, "-o", path, "--max-state", "1G", "--at", "depth=3")
    assert done.exit_code == 1
    assert "depth" in done.output
    assert not path.exists()


def test_sizes_that_nothing_is_counted_at_are_refused(kvc, tmp_path):
    done = kvc(*MODEL, "-o", tmp_path / "tiny.kvc", "--at", "capacity=64")
    assert done.exit_code == 2
    assert "--at says at which sizes --max-ram and --max-state count" in done.output


class Words(torch.nn.Module):
    """Looks three tokens up in a table of two megabytes."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(8192, 64)

    def forward(self, tokens):
        return self.table(tokens)


def test_memory_of_a_table_is_what_is_around_the_rows_looked_up(tmp_path):
    method = Method("forward", (torch.zeros(1, 3, dtype=torch.int64),))
    bundle = compile_program(Words(), [method], "cpu_fp32")
    most = Budgets(file=None, ram=1, state=None, sizes={})
    with pytest.raises(BudgetExceeded) as caught:
        bundle.save(tmp_path / "words.kvc", accept=most.check)
    assert "197 kB  table.weight: float32[8192, 64]" in caught.value.listing
