"""The backend `ethosu` where models, values and sizes are not the usual ones."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.lower import lowering
from kvc.runtime import load
from kvc.runtime.calibration import Samples
from kvc.schema.container import BundleFile
from kvc.schema.errors import BadBuckets, NeverSeen

CALLS = 4


def given(*shape: int) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.standard_normal((CALLS, *shape)).astype(np.float32)


def compiled(folder: Path, model: nn.Module, x: np.ndarray, **more: object) -> Path:
    np.savez(folder / "samples.npz", x=x)
    method = Method("forward", (torch.from_numpy(x[0]),), **more)
    path = folder / "model.kvc"
    compile_program(
        model.eval(), [method], "ethosu_a8w8", calibrate=Samples(folder / "samples.npz")
    ).save(path)
    return path


def far(path: Path, model: nn.Module, x: np.ndarray) -> float:
    """Return how far results are from the model's, of the greatest of these."""
    with load(path) as program, program.session() as session:
        found = np.stack([session.forward(one) for one in x])
    wanted = np.stack([model(torch.from_numpy(one)).detach().numpy() for one in x])
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


class EverySecond(nn.Module):
    """Reads every second element, which TOSA has no operator for."""

    def forward(self, x):
        return x.relu()[:, ::2] * x[:, 1::2]


class SplitToNothing(nn.Module):
    """Has a part without elements."""

    def forward(self, x):
        return torch.split(x.relu(), [1, 0, 5], 1)[2] * 2.0


class PastBySteps(nn.Module):
    """Reads every second element of a state before and after it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("past", torch.zeros(2, 6))

    def forward(self, x):
        before = self.past[:, ::2].reshape(6) * 2.0
        self.past.copy_(x)
        return before + self.past[:, 1::2].reshape(6).tanh()


@pytest.mark.parametrize("kind", [EverySecond, SplitToNothing, PastBySteps])
def test_views_that_an_npu_lacks_are_made_by_the_host(tmp_path: Path, kind):
    x = given(2, 6)
    path = compiled(tmp_path, kind(), x)
    with BundleFile.open(path) as file:
        assert file.program.delegates
    assert far(path, kind(), x) < 0.05


class Biased(nn.Module):
    """A linear layer, one of whose channels has next to no weights."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        with torch.no_grad():
            self.layer.weight[1] = weight
            self.layer.bias[:] = torch.tensor([0.1, 0.3, -0.2])

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("weight", [0.0, 1e-12, 1e-30])
def test_a_channel_of_tiny_weights_keeps_its_bias(tmp_path: Path, weight: float):
    x = given(2, 4)
    path = compiled(tmp_path, Biased(weight), x)
    with load(path) as program:
        found = np.stack([program.forward(one) for one in x])
    assert np.abs(found[..., 1] - 0.3).max() < 0.01


class Exponential(nn.Module):
    """Becomes as large as float32 can be."""

    def forward(self, x):
        return (x.clamp(-1, 1) * 88.5).exp()


def test_entries_of_a_table_beyond_float32_are_the_greatest_integer(tmp_path: Path):
    x = given(3, 200)
    path = compiled(tmp_path, Exponential(), x)
    with load(path) as program:
        assert np.isfinite(program.forward(x[0])).all()


class Tail(nn.Module):
    """Has a value without elements where there is one column."""

    def forward(self, x):
        return torch.cat([x.relu(), x[:, 1:].tanh()], 1)


def test_a_value_without_elements_in_all_samples_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = tmp_path / "sizes.toml"
    recipe.write_text('[backend]\nname = "ethosu"\n[buckets]\ncolumns = [1, 8]\n')
    columns = Dim("columns", 1, 8)
    method = Method("forward", (torch.zeros(2, 3),), dynamic={"x": {1: columns}})
    np.savez(tmp_path / "samples.npz", x=given(2, 1))
    samples = Samples(tmp_path / "samples.npz")
    with pytest.raises(BadBuckets, match="has no tensors without elements"):
        compile_program(Tail(), [method], str(recipe), calibrate=samples)
    # A backend that has some is not asked; this one goes on as such a one.
    monkeypatch.setattr(lowering, "check_fixed", lambda *_: None)
    with pytest.raises(NeverSeen, match="some values of forward have no elements"):
        compile_program(Tail(), [method], str(recipe), calibrate=samples)
