"""int4 by samples, and under a number of bytes: `calibrate` and `fit`."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from daily import only
from model_a import random_decoder
from torch import nn

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.emit.bundle import SaveReport
from kvc.compiler.models.decoder import DecoderConfig
from kvc.runtime import load
from kvc.runtime.calibration import Samples
from kvc.schema.container import BundleFile
from kvc.schema.errors import CompileError, FitTooSmall, FitUnused, SamplesNotFinite
from kvc.tools.cli import main
from kvc.tools.reports.summaries import compiled_lines

COLUMNS, CALLS = 96, 40


class Layers(nn.Module):
    """Two layers that read the same, one after them, and one for other calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Linear(COLUMNS, 64, bias=False)
        self.two = nn.Linear(COLUMNS, 64, bias=False)
        self.last = nn.Linear(64, 16)
        self.other = nn.Linear(COLUMNS, 16)

    def forward(self, x):
        return self.last(self.one(x) * self.two(x).tanh())

    def apart(self, y):
        return self.other(y)


def methods() -> list[Method]:
    rows = Dim("rows", 1, 64)
    x = torch.zeros(4, COLUMNS)
    return [
        Method("forward", (x,), dynamic={"x": {0: rows}}),
        Method("apart", (x,), dynamic={"y": {0: rows}}),
    ]


def inputs(seed: int) -> np.ndarray:
    """Return rows that depend on each other, of very different sizes."""
    random = np.random.default_rng(seed)
    mixing = np.random.default_rng(9).standard_normal((COLUMNS, COLUMNS)).cumsum(0)
    drawn = random.standard_normal((CALLS, 64, COLUMNS)) @ mixing
    return (drawn * np.logspace(-1, 1, COLUMNS) / 50).astype(np.float32)


def samples(folder: Path, **arrays: np.ndarray) -> Samples:
    np.savez(folder / "samples.npz", **arrays)
    return Samples(folder / "samples.npz")


def made(path: Path, recipe: str, calibrate=None, fit=None) -> Path:
    bundle = compile_program(
        Layers().eval(), methods(), recipe=recipe, calibrate=calibrate, fit=fit
    )
    bundle.save(path)
    return path


def error(path: Path, name: str = "forward") -> float:
    """Return the squared error of a method on other inputs, as a share."""
    given = inputs(1)[0]
    model = Layers().eval()
    with torch.no_grad():
        wanted = getattr(model, name)(torch.from_numpy(given)).numpy()
    with load(path) as program:
        found = np.asarray(program.call(name, given))
    return float(((found - wanted) ** 2).mean() / (wanted**2).mean())


@pytest.mark.parametrize("recipe", ["cpu_q4", "xnnpack_q4"])
def test_samples_make_int4_lose_less_on_inputs_like_them(tmp_path, recipe):
    plain = made(tmp_path / "plain.kvc", recipe)
    seen = made(tmp_path / "seen.kvc", recipe, samples(tmp_path, x=inputs(0)))
    assert error(seen) < 0.5 * error(plain)
    assert seen.stat().st_size - plain.stat().st_size < 4096  # provenance


def digests(path: Path) -> dict[str, bytes]:
    with BundleFile.open(path) as file:
        blobs, names = file.program.blobs, file.program.names
        return {named.name: blobs[named.blob].digest for named in names}


def test_weights_that_samples_never_reach_are_as_without(tmp_path):
    plain = made(tmp_path / "plain.kvc", "cpu_q4")
    seen = made(tmp_path / "seen.kvc", "cpu_q4", samples(tmp_path, x=inputs(0)))
    before, after = digests(plain), digests(seen)
    same = {name for name in before if before[name] == after[name]}
    assert {"other.weight.int4_signed", "other.bias", "last.bias"} == {
        name for name in same if not name.endswith("_scale")
    }


def test_a_bundle_says_what_its_weights_were_rounded_by(tmp_path, kvc_dump):
    path = made(tmp_path / "seen.kvc", "cpu_q4", samples(tmp_path, x=inputs(0)))
    with load(path) as program:
        used = program.provenance.calibration
    assert (used.kind, used.samples, used.method) == ("arrays", CALLS, "gptq")
    assert "calibrated by gptq" in kvc_dump(path)


@pytest.fixture
def kvc_dump():
    def dump(path: Path) -> str:
        done = CliRunner().invoke(main, ["dump", str(path)])
        assert done.exit_code == 0, done.output
        return done.output

    return dump


def test_the_same_samples_give_the_same_bytes(tmp_path):
    paths = [
        made(tmp_path / f"{i}.kvc", "cpu_q4", samples(tmp_path, x=inputs(0)))
        for i in range(2)
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("large", [1e20, 1e38])
def test_inputs_that_no_sum_holds_are_named(tmp_path, large):
    given = inputs(0)
    given[3, 2, 1] = large
    with pytest.raises(SamplesNotFinite, match=r"method forward .*one\.weight"):
        made(tmp_path / "x.kvc", "cpu_q4", samples(tmp_path, x=given))


class OtherNumbers(nn.Module):
    """A layer that can be int4 beside layers that cannot."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Linear(COLUMNS, 64)
        self.none = nn.Linear(1, 64)
        self.none.weight = nn.Parameter(torch.zeros(64, 0))
        self.doubles = nn.Linear(COLUMNS, 64, dtype=torch.float64)
        self.halves = nn.Linear(COLUMNS, 64, dtype=torch.bfloat16)
        self.odd = nn.Linear(COLUMNS - 1, 64)

    def forward(self, x):
        others = self.doubles(x.double()).float() + self.halves(x.bfloat16()).float()
        return self.one(x) + others + self.none(x[:, :0]) + self.odd(x[:, 1:])


def test_layers_that_cannot_be_int4_need_no_samples(tmp_path):
    model = OtherNumbers().eval()
    method = Method("forward", (torch.zeros(64, COLUMNS),))
    given = samples(tmp_path, x=inputs(0))
    for name, calibrate in (("plain", None), ("seen", given)):
        bundle = compile_program(model, [method], recipe="cpu_q4", calibrate=calibrate)
        bundle.save(tmp_path / f"{name}.kvc")
    plain, seen = (digests(tmp_path / f"{name}.kvc") for name in ("plain", "seen"))
    changed = {name for name in plain if plain[name] != seen[name]}
    assert {name.partition(".")[0] for name in changed} == {"one"}


OTHER = """description = "as xnnpack_q4"
[linear]
scheme = "qb4"
[embedding]
scheme = "int8"
[backend]
name = "cpu"
"""


def test_several_recipes_share_what_samples_say(tmp_path):
    """Their int4 weights are the same bytes, stored once."""
    other = tmp_path / "other.toml"
    other.write_text(OTHER)
    recipes = f"xnnpack_q4,{other}"
    both = made(tmp_path / "x.kvc", recipes, samples(tmp_path, x=inputs(0)))
    one = made(tmp_path / "one.kvc", "xnnpack_q4", samples(tmp_path, x=inputs(0)))
    with BundleFile.open(both) as file, BundleFile.open(one) as alone:
        assert len(file.program.variants) == 1
        assert len(file.program.blobs) == len(alone.program.blobs)


CONFIG = DecoderConfig(
    vocab=64, dim=64, layers=6, heads=4, kv_heads=2, ffn=128, capacity=64
)


def decoder(path: Path, recipe: str, fit: int | None = None) -> int:
    """Compile a decoder some of whose layers are harder to round; return its bytes."""
    model = random_decoder(CONFIG).model
    with torch.no_grad():
        for layer in model.layers[:2]:
            layer.ffn.down.weight[:, ::32] *= 30  # blocks of one large value each
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    prefill = Method("prefill", (tokens,), role="prefill")
    compile_program(model, [prefill], recipe=recipe, fit=fit).save(path)
    return path.stat().st_size


def wide(path: Path) -> set[str]:
    """Return the weights of layers that are int8."""
    with BundleFile.open(path) as file:
        names = {named.name for named in file.program.names}
    found = (re.fullmatch(r"(layers\..*)\.int8(_blocks)?", name) for name in names)
    return {match[1] for match in found if match}


def told(path: Path) -> str:
    """Return what the table that ends a compilation says of matrices, or ""."""
    report = SaveReport(path.stat().st_size, 0, 0, 0, 0, None, 0, {})
    bundle = SimpleNamespace(model_nbytes=0, stored_forms={})
    lines = compiled_lines(path, bundle, report, None, 0.0, chosen=False)
    return "".join(line.strip() for line in lines if "matrices: " in line)


@pytest.fixture(scope="module", params=["cpu", "xnnpack"])
def sizes(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    both = (decoder(folder / "x.kvc", f"{request.param}_{q}") for q in ("q4", "q8"))
    return request.param, *both


EQUAL = 1000  # bytes of norms that turn out to be equal


@only(sizes=["cpu"])
def test_as_many_weights_as_fit_are_int8_the_worst_first(tmp_path, sizes):
    backend, least, most = sizes
    path, before = tmp_path / "x.kvc", set[str]()
    for share in (0.1, 0.3, 0.6, 0.9):
        fit = int(least + share * (most - least))
        assert fit - 12_000 < decoder(path, f"{backend}_q4", fit) <= fit
        assert len(wide(path)) > len(before)
        before = wide(path)
        narrow = 7 * CONFIG.layers - len(before)
        assert told(path) == f"matrices: {narrow} of int4, {len(before) + 1} of int8"
        down = {int(name.split(".")[1]) for name in before if "down" in name}
        assert len(down) < 3 or {0, 1} <= down  # smaller ones may fill what is left


def test_with_room_for_all_of_them_all_are_int8(tmp_path, sizes):
    backend, _, most = sizes
    path = tmp_path / "x.kvc"
    assert decoder(path, f"{backend}_q4", 2 * most) <= most + EQUAL
    assert len(wide(path)) == 7 * CONFIG.layers
    assert told(path) == f"matrices: {7 * CONFIG.layers + 1} of int8"


class LookedUp(nn.Module):
    """A float32 matrix, and int8 values that are no matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(8, dtype=torch.int8))

    def forward(self, x):
        return self.layer(x) + self.table


def test_without_matrices_of_few_bits_nothing_is_said_of_them(tmp_path):
    path = tmp_path / "x.kvc"
    given = Method("forward", (torch.zeros(1, 8),))
    compile_program(LookedUp().eval(), [given], recipe="cpu_fp32").save(path)
    assert told(path) == ""


def test_less_than_int4_takes_is_refused_with_what_would_do(tmp_path, sizes):
    backend, least, _ = sizes
    path = tmp_path / "x.kvc"
    with pytest.raises(FitTooSmall, match=f"the bundle by {backend}_q4 takes") as found:
        decoder(path, f"{backend}_q4", least - 64)
    needed = found.value.nbytes
    assert found.value.allowed == least - 64
    assert least <= needed <= least + EQUAL
    assert not path.exists()
    assert decoder(path, f"{backend}_q4", needed) <= needed


@pytest.mark.parametrize("recipe", ["cpu_q8", "fp32", "xnnpack_q8,vulkan_q8"])
def test_recipes_without_a_choice_say_so(tmp_path, recipe):
    with pytest.raises(FitUnused, match="use one int4 recipe"):
        made(tmp_path / "x.kvc", recipe, fit=10_000)


@pytest.mark.parametrize("fit", ["100M", True, 1.5, 0, -3])
def test_what_is_no_number_of_bytes_is_refused_before_anything_is_traced(tmp_path, fit):
    with pytest.raises(CompileError, match=r"fit: expected an int of bytes"):
        made(tmp_path / "x.kvc", "cpu_q4", fit=fit)


@pytest.mark.parametrize("more", [["--check"], ["--pack", "xnnpack"]])
def test_what_fit_cannot_count_is_not_taken_with_it(tmp_path, more):
    path = tmp_path / "x.kvc"
    arguments = ["compile", "demo", "--recipe", "cpu_q4", "--fit", "1G", *more]
    done = CliRunner().invoke(main, [*arguments, "-o", str(path)])
    assert done.exit_code == 2
    assert "--fit cannot count what --check and --pack add" in done.output
    assert not path.exists()
