"""R is orthogonal, keeps means, spreads what stands out, and has the same bits."""

import hashlib

import pytest
import torch

from kvc.compiler.weights.rotation import Rotated, RotatedBias, RotatedScale, rotated

WIDTHS = [16, 48, 64, 576]


def rotation(width):
    return rotated(torch.eye(width, dtype=torch.float64))


@pytest.mark.parametrize("width", WIDTHS)
def test_it_is_orthogonal(width):
    r = rotation(width)
    assert torch.allclose(r @ r.T, torch.eye(width, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_keep_their_mean(width):
    rows = torch.linspace(-3, 5, 2 * width, dtype=torch.float64).view(2, width)
    assert torch.allclose(rotated(rows).mean(-1), rows.mean(-1), atol=1e-12)


@pytest.mark.parametrize("width", [64, 576])
def test_one_large_coordinate_is_spread_over_many(width):
    rows = torch.zeros(1, width, dtype=torch.float64)
    rows[0, 5] = 1000
    assert rotated(rows).abs().max() < 1000 * 4 / width**0.5


def test_its_bits_are_those_of_any_machine():
    nbytes = rotation(48).numpy().astype("<f8").tobytes()
    assert hashlib.sha256(nbytes).hexdigest()[:16] == "b4d392c0d4e9d348"


def test_a_matrix_between_rotated_values_computes_the_same():
    matrix, x, scale = torch.randn(32, 16), torch.randn(16), torch.rand(16) + 0.5
    made = Rotated(rows=True, columns=True)(matrix, scale).double()
    wanted = rotated((matrix.double() * scale.double()) @ x.double())
    assert torch.allclose(made @ rotated(x.double()), wanted, atol=1e-5)


@pytest.mark.parametrize("rows", [False, True])
def test_a_bias_takes_over_what_the_norm_added(rows):
    weight, before, own = torch.randn(16, 32), torch.randn(32), torch.randn(16)
    wanted = weight.double() @ before.double() + own.double()
    wanted = rotated(wanted) if rows else wanted
    made = RotatedBias(rows)(weight, before, own)
    assert torch.allclose(made.double(), wanted, atol=1e-5)


def test_a_scale_of_rotated_rows_is_a_matrix():
    x, weight = torch.randn(16).double(), torch.rand(16)
    made = RotatedScale()(weight).double()
    assert torch.allclose(rotated(x) @ made, rotated(x * weight.double()), atol=1e-6)
