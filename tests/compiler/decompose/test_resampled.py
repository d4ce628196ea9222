"""Linear interpolation along one axis and three, where numbers are infinite."""

from math import inf, nan

import pytest
import torch
from module_outcomes import outcome
from torch import nn
from torch.nn.functional import interpolate

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.decompose import resampled
from kvc.runtime import load

X = torch.arange(24.0).sin().reshape(2, 2, 6)
WAYS = (
    {"scale_factor": 1.7},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
    {"scale_factor": 0.6, "align_corners": True},
    {"size": 5},
    {"size": 4, "align_corners": True},
    {"size": 1, "align_corners": True},
    {"size": 7},
)


class Interpolated(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode

    def forward(self, x):
        return [interpolate(x, mode=self.mode, **way) for way in WAYS]


def test_a_line_of_infinite_numbers_is_as_in_eager(tmp_path):
    x = torch.tensor([[[inf, inf, 2.0, -inf, nan, 3.0, inf]]])
    for given in (x, x.double()):
        found = outcome(Interpolated("linear"), (given,), {}, tmp_path / "line.kvc")
        assert (found.kind, found.reason) == ("equal", "")


def test_a_volume_of_infinite_numbers_is_as_in_eager(tmp_path):
    x = torch.arange(3 * 4 * 4.0).sin().reshape(1, 1, 3, 4, 4)
    x[0, 0, 1, 1, 1:3] = torch.tensor([inf, -inf])
    x[0, 0, 2, 3, 3] = inf
    found = outcome(Interpolated("trilinear"), (x,), {}, tmp_path / "volume.kvc")
    assert (found.kind, found.reason) == ("equal", "")


class Doubled(nn.Module):
    def forward(self, x):
        return interpolate(x, scale_factor=2.0, mode="linear")


def test_a_dynamic_size_is_interpolated_too(tmp_path):
    method = Method("forward", (X,), dynamic={"x": {2: Dim("size", 3, 8)}})
    compile_program(Doubled(), [method]).save(tmp_path / "doubled.kvc")
    with load(tmp_path / "doubled.kvc") as program:
        for given in (X, X[..., :4]):
            torch.testing.assert_close(program.forward(given), Doubled()(given))


@pytest.mark.parametrize(
    "way", [{"size": 0}, {"scale_factor": [2.0, 3.0]}, {"size": [4, 4]}]
)
def test_what_eager_refuses_is_left_to_torch(way):
    with pytest.raises((RuntimeError, ValueError)):
        interpolate(X, mode="linear", **way)
    assert resampled.interpolate(X, mode="linear", **way) is None
