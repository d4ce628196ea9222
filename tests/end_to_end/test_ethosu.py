"""The backend `ethosu`: from models to integers, and to files of NPUs."""

import io
import json
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import torch
from click.testing import CliRunner
from streaming_audio import CHANNELS, CausalStack
from torch import nn
from torch.nn import functional
from tosa_reference import needs_tosa, reference

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import Program, load
from kvc.runtime.calibration import Samples
from kvc.runtime.delegates.ethosu import EthosU, vela
from kvc.runtime.delegates.ethosu.backend import EthosUHandle
from kvc.runtime.delegates.ethosu.evaluate import evaluate
from kvc.runtime.delegates.ethosu.lowering import results_of, written_inputs
from kvc.schema.backends.grids import Stored, read_grids, write_grids
from kvc.schema.container import BundleFile
from kvc.schema.errors import (
    BadBuckets,
    BadProgram,
    BadSetting,
    ExportFailed,
    MissingLibrary,
    RangeUnbounded,
)
from kvc.schema.ops import OPS, Aliasing
from kvc.tools.cli import main

U85, U55 = "ethosu:u85-256", "ethosu:u55-128"
needs_vela = pytest.mark.skipif(
    find_spec("ethosu") is None, reason="no Vela here: pip install 'kvc[ethosu]'"
)


class Picture(nn.Module):
    """A small network of pictures: convolutions of each kind, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(8, 16, 3, padding=(1, 2), dilation=(1, 2), groups=8)
        self.last = nn.Conv2d(16, 4, 1, bias=False)
        self.out = nn.Linear(4 * 6 * 6, 10)

    def forward(self, x):
        x = functional.relu(self.first(x))
        x = functional.silu(self.deep(x))
        return self.out(self.last(x).flatten(1))


class Shapes(nn.Module):
    """Moves elements in all ways, and computes with values of different ranges."""

    def forward(self, x, y):
        a, b = x.split([2, 4], 1)
        joined = torch.cat([a.tanh(), 3 * b[:, 1:3] - y[0, 1]], 1)
        turned = joined.permute(0, 2, 1) + y.unsqueeze(1).expand(1, 4, 4, 4)[0]
        mixed = (turned * turned.transpose(0, 1).sigmoid()).clamp(-1.5, 2)
        return mixed[:, -1], mixed.neg()


class Gated(nn.Module):
    """The feed-forward part of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(16, 32), nn.Linear(16, 32, bias=False)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(functional.gelu(self.gate(x)) * self.up(x))


MODELS = {
    "picture": (Picture, [(1, 3, 12, 12)]),
    "shapes": (Shapes, [(4, 6, 4), (1, 4, 4)]),
    "gated": (Gated, [(2, 3, 16)]),
}


def noise(shapes, seed=0, calls=4):
    random = np.random.default_rng(seed)
    return [random.standard_normal((calls, *one)).astype(np.float32) for one in shapes]


RECIPES = "ethosu_a8w8", "ethosu_a16w8"


def compiled(
    folder: Path, name: str, recipe: str = RECIPES[0]
) -> tuple[nn.Module, Path, list[np.ndarray]]:
    torch.manual_seed(0)
    kind, shapes = MODELS[name]
    model, given = kind().eval(), noise(shapes)
    example = tuple(torch.from_numpy(one[0]) for one in given)
    method = Method("forward", example)
    path = folder / f"{name}.kvc"
    compile_program(
        model, [method], recipe=recipe, calibrate=samples(folder, *given)
    ).save(path)
    return model, path, given


def samples(folder: Path, *given: np.ndarray) -> Samples:
    path = folder / "samples.npz"
    np.savez(path, **dict(zip(("x", "y"), given, strict=False)))
    return Samples(path)


def partition_of(path: Path):
    with BundleFile.open(path) as file:
        (partition,) = file.program.delegates
        method = file.program.methods[partition.method]
        return partition, method.blocks[partition.block].graph


def is_whole(path: Path) -> bool:
    """Tell whether all is in partitions, but for views of what they give."""
    with BundleFile.open(path) as file:
        graphs = [method.graph for method in file.program.methods]
    ops = {one.op for graph in graphs for one in graph.instructions}
    computed = {op for op in ops if OPS[op].aliasing is not Aliasing.VIEW}
    return computed == {"kvc::delegate"}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_whole_and_some_steps_of_its_grids_off(tmp_path: Path, name, recipe):
    model, path, given = compiled(tmp_path, name, recipe)
    assert is_whole(path)
    with load(path) as program:
        for one in zip(*given, strict=True):
            found = program.forward(*one)
            wanted = model(*map(torch.from_numpy, one))
            pairs = (
                zip(found, wanted, strict=True)
                if name == "shapes"
                else [(found, wanted)]
            )
            for result, exact in pairs:
                exact = exact.detach().numpy()
                assert result.shape == exact.shape
                far = np.abs(result - exact).max()
                assert 0 < far < FAR[recipe] * np.abs(exact).max()


FAR = {"ethosu_a8w8": 0.08, "ethosu_a16w8": 0.01}  # weights are int8 in both


def graphs(program: Program) -> list:
    """Return the TOSA graphs of a program's partitions."""
    program.pack()
    handles = program._engine._resources._handles
    return [
        unit.graph
        for handle in handles.values()
        if isinstance(handle, EthosUHandle)
        for unit in handle.units("partition", "method", {})
    ]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODELS)
@needs_tosa
def test_the_host_computes_what_the_reference_model_does(tmp_path: Path, name, recipe):
    _, path, _ = compiled(tmp_path, name, recipe)
    with load(path) as program:
        (graph,) = graphs(program)
    for seed in range(3):
        random = np.random.default_rng(seed)
        most = 128 if recipe == "ethosu_a8w8" else 1 << 15
        inputs = [
            random.integers(-most, most, graph.tensors[one].shape)
            for one in graph.inputs
        ]
        found = evaluate(graph, inputs)
        wanted = reference(graph, inputs, tmp_path)
        assert [one.tolist() for one in found] == [one.tolist() for one in wanted]


def stream(
    folder: Path, recipe: str = RECIPES[0]
) -> tuple[nn.Module, Path, np.ndarray]:
    torch.manual_seed(0)
    (given,) = noise([(1, CHANNELS, 8)], calls=12)
    model, path = CausalStack().eval(), folder / "stream.kvc"
    method = Method("forward", (torch.zeros(1, CHANNELS, 8),))
    compile_program(
        model, [method], recipe=recipe, calibrate=samples(folder, given)
    ).save(path)
    return model, path, given


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_stream_is_whole_with_its_states(tmp_path: Path, recipe: str):
    model, path, given = stream(tmp_path, recipe)
    assert is_whole(path)
    with load(path) as program, program.session() as session:
        for one in given:
            found = session.forward(one)
            wanted = model(torch.from_numpy(one)).detach().numpy()
            far = np.abs(found - wanted).max()
            assert 0 < far < FAR[recipe] * np.abs(wanted).max()
        past = np.asarray(session.state["layers.0.past"])
    assert np.abs(past - given[-1][..., -2:]).max() < 0.02


@pytest.mark.parametrize("recipe", RECIPES)
@needs_tosa
def test_a_stream_is_what_the_reference_model_computes_call_by_call(
    tmp_path: Path, recipe: str
):
    _, path, given = stream(tmp_path, recipe)
    partition, code = partition_of(path)
    grids = read_grids(partition.payload, code, "", "")
    with load(path) as program:
        (graph,) = graphs(program)
        states = {
            value: np.zeros(code.values[value].type.shape({}), np.float32)
            for value in code.inputs
        }
        with program.session() as session:
            for one in given[:4]:
                held = [
                    states[v] if v in written_inputs(code) else one for v in code.inputs
                ]
                inputs = [
                    grids[v].integers(array)
                    for v, array in zip(code.inputs, held, strict=True)
                ]
                made = reference(graph, inputs, tmp_path)
                results = dict(zip(results_of(code), made, strict=True))
                for root, value in written_inputs(code).items():
                    states[root] = grids[value].numbers(results[value].astype(np.int32))
                wanted = {
                    grids[v].numbers(w.astype(np.int32)).tobytes()
                    for v, w in results.items()
                }
                assert session.forward(one).tobytes() in wanted


def test_equal_models_are_equal_bytes(tmp_path: Path):
    one = compiled(tmp_path, "gated")[1].read_bytes()
    assert compiled(tmp_path, "gated")[1].read_bytes() == one


class Left(nn.Module):
    """Has what the NPU does not take between what it does."""

    def forward(self, x):
        return (x.tanh().cumsum(1) * 2).relu()


def test_what_is_left_runs_on_the_host_and_says_why(tmp_path: Path):
    (x,) = noise([(2, 3)])
    path = tmp_path / "left.kvc"
    compile_program(
        Left(), [Method("forward", (torch.zeros(2, 3),))], recipe="ethosu_a8w8",
        calibrate=samples(tmp_path, x),
    ).save(path)  # fmt: skip
    shown = CliRunner().invoke(main, ["dump", str(path), "--delegates"]).output
    assert "it has no operator for aten::cumsum" in shown
    with load(path) as program:
        found = program.forward(x[0])
        wanted = Left()(torch.from_numpy(x[0])).numpy()
        assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()


def decoder(folder: Path) -> Path:
    """Compile a decoder whose rest is for `cpu`, at some sizes."""
    recipe, path = folder / "decoder.toml", folder / "decoder.kvc"
    recipe.write_text(
        '[backend]\nname = "ethosu"\nrest = "cpu"\n[buckets]\nseq = [1, 8]\n'
    )
    np.savez(folder / "tokens.npz", tokens=PROMPT)
    spec = tiny_decoder.factory()
    compile_program(
        spec.model,
        spec.methods,
        recipe=str(recipe),
        calibrate=Samples(folder / "tokens.npz"),
    ).save(path)
    return path


PROMPT = np.random.default_rng(0).integers(0, 256, (8, 20))


def test_of_a_decoder_linear_layers_gates_and_sums_are_taken(tmp_path: Path):
    path, plain = decoder(tmp_path), tmp_path / "plain.kvc"
    with BundleFile.open(path) as file:
        ops = {
            step.op
            for one in file.program.delegates
            if one.backend == "ethosu"
            for step in file.program.methods[one.method]
            .blocks[one.block]
            .graph.instructions
        }
    assert {"aten::linear", "aten::add.Tensor", "aten::mul.Tensor", "aten::silu"} <= ops
    spec = tiny_decoder.factory()
    compile_program(spec.model, spec.methods).save(plain)
    results = []
    for bundle in (path, plain):
        with load(bundle) as program, program.session() as session:
            prompt = session.prefill(PROMPT[:1, :13])  # 8, and five by one
            results.append(np.stack([prompt, session.decode(PROMPT[:1, 13:14])]))
    far = np.abs(results[0] - results[1]).max()
    assert 0 < far < 0.08 * np.abs(results[1]).max()


@needs_vela
def test_a_partition_is_exported_at_each_of_its_sizes(tmp_path: Path):
    with load(decoder(tmp_path)) as program:
        raw = program.pack(U85)[0].content()
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        told = json.loads(archive.read("report.json"))["partitions"]
        files = {one["file"]: one["inputs"][0]["shape"] for one in told}
        assert {*archive.namelist()} == {"report.json", *files}
    assert files["partition0_seq=8.tflite"] == [1, 8, 32]
    assert files["partition0_seq=1.tflite"] == [1, 1, 32]


def test_sizes_need_buckets(tmp_path: Path):
    (x,) = noise([(2, 3)])
    rows = Dim("rows", 1, 8)
    method = Method("forward", (torch.zeros(2, 3),), dynamic={"x": {0: rows}})
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[backend]\nname = "ethosu"\n')
    with pytest.raises(BadBuckets):
        compile_program(
            Left(), [method], recipe=str(recipe), calibrate=samples(tmp_path, x)
        )


def test_infinite_values_are_refused(tmp_path: Path):
    class Exploding(nn.Module):
        def forward(self, x):
            return (x * 1e30).exp().tanh()

    (x,) = noise([(2, 3)])
    with pytest.raises(RangeUnbounded):
        compile_program(
            Exploding(), [Method("forward", (torch.zeros(2, 3),))],
            recipe="ethosu_a8w8", calibrate=samples(tmp_path, x),
        )  # fmt: skip


@needs_vela
@pytest.mark.parametrize("target", [U85, U55])
def test_a_stream_is_compiled_for_an_npu_all_of_it(tmp_path: Path, target: str):
    _, path, _ = stream(tmp_path)
    with load(path) as program:
        (made,) = program.pack(target)
        raw = made.content()
        assert program.pack(target)[0].content() == raw
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        assert archive.namelist() == ["report.json", "partition0.tflite"]
        report = json.loads(archive.read("report.json"))
        assert archive.read("partition0.tflite")[4:8] == b"TFL3"
    (one,) = report["partitions"]
    assert report["target"] == f"{target.partition(':')[2]}-vela5.2.0"
    assert sorted(given["is"] for given in one["inputs"])[-1] == "state layers.2.past"
    assert [made["is"] for made in one["outputs"]].count("output 0") == 1
    assert one["cycles"] > 1000
    assert one["macs"] > 500
    assert 0 < one["sram_nbytes"] < 4096


@needs_vela
def test_dump_shows_what_an_exported_file_takes(tmp_path: Path):
    _, path, _ = stream(tmp_path)
    made, runner = str(tmp_path / "stream.zip"), CliRunner()
    done = runner.invoke(main, ["export", str(path), "--target", U85, "-o", made])
    assert done.exit_code == 0, done.output
    shown = runner.invoke(main, ["dump", made]).output
    assert "a file for u85-256-vela5.2.0" in shown
    assert "partition0.tflite  forward" in shown
    told = json.loads(runner.invoke(main, ["dump", made, "--json"]).output)
    (one,) = told["exported"]["partitions"]
    assert f"{one['cycles']:,}" in shown
    refused = runner.invoke(main, ["dump", made, "--memory"])
    assert "has no such tables" in refused.output


def reported(**counts: int) -> bytes:
    usual = dict.fromkeys(("sram_nbytes", "other_nbytes", "cycles", "macs"), 1)
    one = {"file": "f", "method": "m", "inputs": [], "outputs": [], **usual, **counts}
    return json.dumps({"target": "t", "partitions": [one]}).encode()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("other.txt", b"{}", "report.json"),
        ("report.json", b"[]", "damaged"),
        ("report.json", b'{"target": 3, "partitions": []}', "3 is no str"),
        ("report.json", b"[" * 100_000, "damaged"),
        ("report.json", reported(sram_nbytes=10**400), "a count below 0 or above"),
        ("report.json", reported(cycles=-1), "a count below 0 or above"),
    ],
)
def test_dump_refuses_archives_that_are_no_exports(tmp_path, name, content, words):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, content)
    found = CliRunner().invoke(main, ["dump", str(tmp_path / "a.zip")])
    assert isinstance(found.exception, SystemExit)
    assert words in found.output


def test_dump_refuses_an_encrypted_archive(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("report.json", reported())
    raw = bytearray((tmp_path / "a.zip").read_bytes())
    raw[raw.rfind(b"PK\x01\x02") + 8] |= 1
    raw[6] |= 1
    (tmp_path / "a.zip").write_bytes(raw)
    found = CliRunner().invoke(main, ["dump", str(tmp_path / "a.zip")])
    assert isinstance(found.exception, SystemExit)
    assert "encrypted" in found.output


@needs_vela
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODELS)
def test_models_are_compiled_for_both_npus(tmp_path: Path, name: str, recipe: str):
    _, path, _ = compiled(tmp_path, name, recipe)
    with load(path) as program:
        for target in (U85, U55):
            assert program.pack(target)[0].nbytes > 1000


def test_an_unknown_target_is_refused_with_those_that_there_are(tmp_path: Path):
    _, path, _ = stream(tmp_path)
    with load(path) as program, pytest.raises(BadSetting, match="ethosu:u55-32, "):
        program.pack("ethosu:u65-256")


@pytest.mark.parametrize("found", [None, "4.0.0"])
def test_a_missing_or_other_vela_is_refused_in_words(tmp_path, monkeypatch, found):
    def version(name: str) -> str:
        if found is None:
            raise vela.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(vela, "version", version)
    _, path, _ = stream(tmp_path)
    with load(path) as program, pytest.raises(MissingLibrary) as error:
        program.pack(U85)
    assert "pip install 'kvc[ethosu]'" in str(error.value)
    assert (found or "it is not installed") in str(error.value)


@pytest.mark.parametrize(
    ("code", "seconds", "words"),
    [
        ("import os; os.abort()", 60, "Vela ended with -6"),
        ("import sys; print('no such op'); sys.exit(3)", 60, "no such op"),
        ("while True: pass", 0.5, "took more than 0.5 seconds"),
        ("print('CPU operators = 1 (50.0%)')", 60, "left to a processor"),
        ("print('CPU operators = 0 (0.0%)')", 60, "what Vela wrote cannot be read"),
    ],
)
def test_a_compiler_that_crashes_or_hangs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code, seconds, words
):
    monkeypatch.setattr(vela, "COMMAND", ("-c", code))
    monkeypatch.setattr(vela, "SECONDS", seconds)
    with pytest.raises(ExportFailed, match=words):
        vela.compile_graph(b"", "ethos-u85-256", "u85", "a graph")


@needs_vela
def test_vela_refuses_a_damaged_file_without_harm():
    with pytest.raises(ExportFailed):
        vela.compile_graph(b"TOSA" * 40, "ethos-u85-256", "u85", "a graph")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda grids: {}, "has no grid"),
        (lambda grids: {k: of(v, "UINT16") for k, v in grids.items()}, "is uint16"),
        (lambda grids: {k: of(v, "INT16") for k, v in grids.items()}, "with a zero"),
    ],
)
def test_a_payload_with_wrong_grids_is_refused(tmp_path, monkeypatch, change, words):
    _, path, _ = compiled(tmp_path, "gated")
    partition, code = partition_of(path)
    grids = change(read_grids(partition.payload, code, "", ""))
    forged(monkeypatch, write_grids(grids))
    with load(path) as program, pytest.raises(BadProgram, match=words):
        program.pack()


def test_a_payload_that_is_no_grids_is_refused(tmp_path, monkeypatch):
    _, path, _ = compiled(tmp_path, "gated")
    forged(monkeypatch, b"\xff" * 13)
    with load(path) as program, pytest.raises(BadProgram, match="a grid"):
        program.pack()


def of(grid, stored):
    return replace(grid, stored=Stored[stored], zero=7)


def forged(monkeypatch: pytest.MonkeyPatch, payload: bytes) -> None:
    """Let partitions come with another payload."""
    init = EthosU.init
    monkeypatch.setattr(
        EthosU,
        "init",
        lambda self, one, data: init(self, replace(one, payload=payload), data),
    )
