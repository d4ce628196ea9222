"""The backend `ethosu`: from models to integers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_decoder
import torch
from click.testing import CliRunner
from ethosu_models import (
    MODELS,
    PROMPT,
    RECIPES,
    compiled,
    decoder,
    noise,
    partition_of,
    samples,
    stream,
)
from torch import nn
from tosa_reference import needs_tosa, reference

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import Program, load
from kvc.runtime.delegates.ethosu import EthosU
from kvc.runtime.delegates.ethosu.backend import EthosUHandle
from kvc.runtime.delegates.ethosu.evaluate import evaluate
from kvc.runtime.delegates.ethosu.lowering import results_of, written_inputs
from kvc.schema.backends.grids import Stored, read_grids, write_grids
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadBuckets, BadProgram, RangeUnbounded
from kvc.schema.ops import OPS, Aliasing
from kvc.tools.cli import main


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
