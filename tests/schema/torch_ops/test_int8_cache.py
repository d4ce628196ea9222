"""`kvc::quantize_cache`: which int8 rows and which scales stand for a row."""

import math

import pytest
import torch

from kvc.schema.torch_ops import quantize_cache
from kvc.schema.torch_ops.int8_rows import Int8Rows

TINY = 2.0**-126


def test_a_row_is_scaled_by_its_greatest_magnitude():
    rows, scale = quantize_cache(torch.tensor([[254.0, -127.0, 3.0, 0.0]]))
    assert rows.tolist() == [[127, -64, 2, 0]]  # 63.5 and 1.5 to the even neighbour
    assert scale.tolist() == [2.0]
    assert (rows.dtype, scale.dtype) == (torch.int8, torch.float32)


@pytest.mark.parametrize("sign", [1, -1])
def test_halves_are_rounded_to_even(sign: int):
    x = sign * torch.tensor([0.5, 1.5, 2.5, 3.5, 125.5, 126.5, 127.0])
    rows, _ = quantize_cache(x)
    assert rows.tolist() == [sign * n for n in (0, 2, 2, 4, 126, 126, 127)]


def test_each_row_has_a_scale_of_its_own():
    x = torch.tensor([[1.0, 0.5], [0.001, 0.001], [-1e30, 1e29]])
    rows, scale = quantize_cache(x.view(1, 3, 1, 2))
    assert rows.shape == (1, 3, 1, 2)
    assert scale.shape == (1, 3, 1)
    assert rows.view(3, 2).tolist() == [[127, 64], [127, 127], [-127, 13]]
    expected = x.abs().amax(-1) / 127
    assert torch.equal(scale.view(3), expected)


def test_no_value_is_off_by_more_than_half_a_step():
    torch.manual_seed(0)
    x = torch.randn(64, 3, 16) * torch.logspace(-30, 30, 64)[:, None, None]
    rows, scale = quantize_cache(x)
    assert int(rows.abs().amax()) == 127
    error = (rows.double() * scale.double()[..., None] - x.double()).abs()
    assert (error <= scale.double()[..., None] * 0.5000001).all()


def test_a_row_of_zeros_has_a_scale_that_is_no_zero():
    rows, scale = quantize_cache(torch.tensor([[0.0, -0.0], [0.0, 0.0]]))
    assert not rows.any()
    assert scale.tolist() == [TINY, TINY]


def test_no_scale_is_subnormal():
    rows, scale = quantize_cache(torch.tensor([[3 * TINY, -TINY]]))
    assert rows.tolist() == [[3, -1]]
    assert scale.tolist() == [TINY]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("width", [4, 64])
def test_a_row_that_is_not_finite_stands_for_nan_and_others_for_themselves(
    wrong: float, width: int
):
    x = torch.ones(3, width)
    x[1, 2] = wrong
    rows, scale = quantize_cache(x)
    assert rows[1].tolist() == [0] * width
    assert not math.isfinite(float(scale[1]))
    widened = Int8Rows(rows[None, None], scale[None, None]).widened(torch.float32)[0, 0]
    assert torch.isnan(widened[1]).all()
    assert torch.allclose(widened[[0, 2]], x[[0, 2]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floats_are_quantized_as_float32(dtype: torch.dtype):
    torch.manual_seed(1)
    x = torch.randn(5, 8).to(dtype)
    for found, expected in zip(
        quantize_cache(x), quantize_cache(x.float()), strict=True
    ):
        assert torch.equal(found, expected)


def test_rows_need_not_lie_together():
    torch.manual_seed(2)
    x = torch.randn(6, 4, 5)
    swapped = quantize_cache(x.transpose(0, 1))
    for found, expected in zip(swapped, quantize_cache(x), strict=True):
        assert torch.equal(found.transpose(0, 1), expected)


@pytest.mark.parametrize(
    "x", [torch.ones(3, dtype=torch.int8), torch.tensor(1.0), torch.ones(3, 0)], ids=str
)
def test_what_has_no_float_rows_is_refused(x: torch.Tensor):
    with pytest.raises(ValueError, match="has no rows to quantize"):
        quantize_cache(x)
