"""Bundles of the recipe `qnn_a16w8`: by the reference, a device of numpy, the library.

The device of numpy shares no code with the reference: it reads the file that is written
for the library. What needs the library is skipped where it is not installed.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import other_libraries
import pytest
import qnn_fixed
import torch
from qnn_device import ASKED
from tiny_runs import answers, distance
from torch import nn
from whole_process import modules_after

from kvc.compiler import Method, compile_program
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.runtime.calibration import Samples
from kvc.runtime.delegates.qnn import Qnn
from kvc.schema.errors import CalibrationNeeded
from kvc.tools.reports.methods import describe_operators

NEAR = 1e-4  # of the reference, over the largest logit: about a step of 65536
OLDER = 6e-4  # likewise, v68 and v69
pytestmark = pytest.mark.filterwarnings("ignore::kvc.runtime.SoftwareDevice")
WEIGHTS_ALONE = '[linear]\nscheme = "w8"\n[embedding]\nscheme = "int8"\n'


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fixed")
    return qnn_fixed.compiled(folder / "m.kvc", qnn_fixed.recipe(seq=(1, 4, 16)))


@pytest.fixture(params=["numpy", "library"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    return other_libraries.use("qnn", request.param, monkeypatch)


def test_sixteen_bits_add_little_to_the_rounding_of_weights(path: Path, tmp_path: Path):
    """Weights of int8 alone are 6e-3 from float32; this is ten times nearer to them."""
    (tmp_path / "w8.toml").write_text(WEIGHTS_ALONE)
    plain = qnn_fixed.compiled(tmp_path / "w8.kvc", str(tmp_path / "w8.toml"))
    found = []
    for one in (path, plain):
        with load(one, reference=True) as program, program.session() as session:
            found.append(answers(session))
    assert distance(*found) <= 2e-4


def test_a_context_of_a_target_gives_the_same_bits(
    path: Path, device: str, tmp_path: Path
):
    from kvc.tools.packing import pack_bundle

    packed = tmp_path / "packed.kvc"
    packed.write_bytes(path.read_bytes())
    pack_bundle(packed, "qnn:v75")
    found = []
    for one in (path, packed):
        ASKED.clear()
        with load(one, device="qnn:v75") as program, program.session() as session:
            found.append(answers(session))
        if device == "numpy":
            assert ("load" in ASKED) == (one == packed)
    assert all(map(np.array_equal, *found))
    with load(path) as program:
        files = [program.pack(target="qnn:v75")[0].content() for _ in range(2)]
    assert files[0] == files[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", Qnn.targets())
def test_each_architecture_is_near_the_reference(path: Path, target: str):
    found = []
    for given in ({"device": f"qnn:{target}"}, {"reference": True}):
        with load(path, **given) as program, program.session() as session:
            found.append(answers(session))
    assert distance(*found) <= (OLDER if target in ("v68", "v69") else NEAR)


def test_weights_are_int8_and_lie_once(path: Path, tmp_path: Path):
    rows = replace(load_recipe("xnnpack_q8"), basis="model")
    plain = qnn_fixed.compiled(tmp_path / "q8.kvc", rows)
    with load(path) as program, load(plain) as other:
        mine, theirs = program._engine.program, other._engine.program
        held = [{b.digest for b in one.blobs} for one in (mine, theirs)]
        assert held[1] <= held[0], "the blobs are those of xnnpack_q8"
        for each in mine.delegates:
            graph = mine.methods[each.method].blocks[each.block].graph
            ops = {step.op for step in graph.instructions}
            assert bool(each.payload) == (each.backend == "qnn")
            assert ("kvc::linear_w8" in ops) == (each.backend == "qnn")
            assert "aten::linear" not in ops


def test_the_same_model_and_samples_give_the_same_bytes(path: Path, tmp_path: Path):
    again = qnn_fixed.compiled(tmp_path / "m.kvc", qnn_fixed.recipe(seq=(1, 4, 16)))
    assert again.read_bytes() == path.read_bytes()


def test_without_samples_it_is_refused(tmp_path: Path):
    method = Method("forward", (torch.zeros(1, 4),))
    with pytest.raises(CalibrationNeeded, match="backend qnn"):
        compile_program(nn.Linear(4, 4), [method], "qnn_a16w8")


def test_the_reference_needs_neither_torch_nor_the_library(path: Path):
    found = modules_after(path)
    assert not found & {"torch", "onnxruntime", "onnxruntime_qnn"}


class Left(nn.Module):
    """Something of each that the device has no integers for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other = nn.Linear(4, 4), nn.LayerNorm(4)
        self.another = nn.LayerNorm(4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.other(self.one(x))
        y = nn.functional.gelu(y) / (y.abs() + 1) - torch.sigmoid(y) * 3 / 7
        y = torch.cat([y, torch.tanh(self.another(y)).exp()], -1)
        return torch.maximum(y, -y / 2) * torch.relu(y) - 1


def test_what_has_no_integers_is_left_and_all_else_is_taken(
    device: str, tmp_path: Path
):
    model, x = Left().eval(), torch.randn(6, 3, 4)
    np.savez(tmp_path / "s.npz", x=x.numpy())
    bundle = compile_program(
        model, [Method("forward", (x[0],))], "qnn_a16w8",
        calibrate=Samples(tmp_path / "s.npz"),
    )  # fmt: skip
    bundle.save(tmp_path / "m.kvc")
    left = set[str]()
    for each in bundle.program.delegates:
        graph = bundle.program.methods[each.method].blocks[each.block].graph
        if each.backend == "cpu":
            left |= {step.op for step in graph.instructions}
    assert {"aten::div.Tensor", "aten::exp"} <= left
    told = {one.op: one.reasons for one in describe_operators(bundle.program)}
    words = "it does not run aten::exp on integers"
    assert told["aten::exp"] == {"qnn": words}
    assert not left & {"kvc::linear_w8", "aten::layer_norm", "aten::gelu", "aten::cat"}
    with load(tmp_path / "m.kvc") as program:
        for one in x:
            wanted = model(one).detach().numpy()
            found = program.forward(one.numpy())
            assert np.abs(found - wanted).max() <= 2e-2 * np.abs(wanted).max()
