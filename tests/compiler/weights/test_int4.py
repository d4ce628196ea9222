import numpy as np
import pytest
import torch
from eight_rows import one_by_one, unpack_int4

from kvc.compiler.weights.int4 import Factor, quantize_int4, widened

SMALLEST = torch.finfo(torch.bfloat16).tiny


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def rounded(weight, signed=False, factor=None):
    """Return what the int4 form of a matrix stands for, float32 [out, in]."""
    packed, scale = quantize_int4(weight, signed, factor)
    values = torch.from_numpy(unpack_int4(packed.numpy())).float()
    scales = one_by_one(scale).float()
    made = (values.view(-1, 32) * scales.reshape(-1, 1)).view(weight.shape)
    assert torch.equal(widened(packed, scale), made)
    return made


def error_of(weight, scale):
    """Return the squared error of each block with a scale [blocks, 1]."""
    blocks = weight.view(-1, 32)
    values = (blocks / scale).round().clamp(-8, 7)
    return (values * scale - blocks).square().sum(1)


def correlated(count, columns):
    """Return inputs [count, in] that depend on each other, of very different sizes."""
    mixing = normal(columns, columns).cumsum(0) * torch.logspace(-1, 1, columns)
    drawn = torch.randn(count, columns, generator=torch.Generator().manual_seed(1))
    return drawn @ mixing


def test_values_that_int4_can_say_come_back_as_they_were():
    weight = (torch.arange(512).view(16, 32) % 16 - 8) * 0.25
    assert torch.equal(rounded(weight), weight)


def test_two_values_share_a_byte_the_first_in_the_low_half():
    weight = torch.zeros(8, 32)
    weight[0, 0], weight[0, 1], weight[0, 3] = -8, 7, 1
    packed, scale = quantize_int4(weight, signed=False)
    assert scale.tolist() == [[[1.0] * 8]]
    assert packed.dtype is torch.uint8
    assert packed[0, 0, 0].tolist() == [0xF0, 0x98, 0x88, 0x88]


def test_four_bytes_of_a_row_lie_beside_those_of_the_next():
    weight = torch.zeros(16, 64)
    weight[8:, 0] = -8
    weight[11, 40] = 5
    packed, scale = quantize_int4(weight, signed=False)
    assert packed.shape == (2, 8, 8, 4)
    assert packed.reshape(-1)[8 * 8 * 4 + (5 * 8 + 3) * 4] != 0x88
    changed = (packed != 0x88).nonzero().tolist()
    assert changed == [*([1, 0, i, 0] for i in range(8)), [1, 5, 3, 0]]
    assert scale.shape == (2, 2, 8)
    assert (scale[1, 1] != 1).nonzero().tolist() == [[3]]


def test_each_block_of_32_has_a_scale_of_its_own():
    weight = torch.cat([torch.full((24, 32), 8.0), torch.full((24, 32), -0.5)], 1)
    packed, scale = quantize_int4(weight, signed=False)
    assert packed.shape == (3, 8, 8, 4)
    assert scale.shape == (3, 2, 8)
    assert scale.dtype is torch.bfloat16
    assert torch.allclose(rounded(weight), weight, rtol=0.01)
    assert (scale[:, 0] / scale[:, 1] > 10).all()


@pytest.mark.parametrize("signed", [False, True])
def test_a_block_takes_a_better_scale_than_its_extreme_gives(signed):
    """Among these are what other formats take: absmax / 7, and the extreme / -8."""
    weight = normal(560, 64)
    blocks = weight.view(-1, 32)
    extreme = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    unit = -extreme if signed else extreme.abs()
    found = (rounded(weight, signed) - weight).view(-1, 32).square().sum(1)
    for end in (7, 8):
        each = error_of(weight, (unit / end).bfloat16().float())
        assert found.sum() < 0.96 * each.sum()
        assert (found < each * 1.02).float().mean() > 0.9


def test_signs_of_scales_make_up_for_the_eighth_step_below_zero():
    weight = normal(560, 64)
    errors = [(rounded(weight, signed) - weight).square().sum() for signed in (0, 1)]
    assert errors[1] < 0.92 * errors[0]


def test_scales_are_negative_where_the_extreme_is_above_zero():
    weight = normal(64, 32)
    blocks = weight.abs().argmax(1, keepdim=True)
    scales = one_by_one(quantize_int4(weight, signed=True)[1]).float()
    assert ((scales < 0) == (weight.gather(1, blocks) > 0)).all()


def test_errors_are_at_most_what_a_cut_tail_costs():
    weight = normal(56, 64)
    absmax = weight.view(-1, 32).abs().amax(1).repeat_interleave(32).view(56, 64)
    assert ((rounded(weight) - weight).abs() <= absmax * (1.51 / 8.5)).all()


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-40, SMALLEST, -SMALLEST * 3])
def test_a_block_too_small_for_a_normal_scale_is_zeros(number):
    packed, scale = quantize_int4(torch.full((8, 32), number), signed=False)
    assert (scale == 1).all()
    assert (packed == 0x88).all()


def test_every_scale_is_normal_and_positive():
    weight = normal(64, 64) * torch.logspace(-45, 30, 64)[:, None]
    scale = quantize_int4(weight, signed=False)[1].float()
    assert scale.isfinite().all()
    assert (scale >= SMALLEST).all()


@pytest.mark.parametrize("exponent", [127, 83, 63, -66, -100])
def test_a_block_of_any_size_takes_the_scale_with_the_least_error(exponent):
    """Errors whose squares float32 cannot hold are compared all the same."""
    weight, size = normal(8, 64).clamp(-1, 1), 2.0**exponent
    assert torch.equal(rounded(weight * size) / size, rounded(weight))
    assert not torch.equal(rounded(weight), weight)


def test_rows_do_not_depend_on_one_another():
    weight = normal(40, 96)
    packed, scale = quantize_int4(weight, signed=False)
    for i in range(5):
        one = quantize_int4(weight[8 * i : 8 * i + 8], signed=False)
        np.testing.assert_array_equal(one[0], packed[i : i + 1])
        assert torch.equal(one[1], scale[i : i + 1])


@pytest.mark.parametrize("signed", [False, True])
def test_errors_that_inputs_hardly_see_are_traded_for_those_that_they_see(signed):
    inputs, weight = correlated(4096, 96), normal(40, 96)
    factor = Factor.of(inputs.T @ inputs)
    wanted = inputs @ weight.T
    plain, by_inputs = (
        (inputs @ rounded(weight, signed, known).T - wanted).square().mean()
        for known in (None, factor)
    )
    assert by_inputs < 0.3 * plain


def test_each_column_makes_up_for_those_before_it():
    """Beside importance alone: by the diagonal of the same moments."""
    inputs, weight = correlated(4096, 96), normal(40, 96)
    moments = inputs.T @ inputs
    wanted = inputs @ weight.T
    diagonal, whole = (
        (inputs @ rounded(weight, True, Factor.of(each)).T - wanted).square().mean()
        for each in (moments.diagonal().diag(), moments)
    )
    assert whole < 0.5 * diagonal


def test_independent_inputs_of_one_size_change_nothing():
    weight = normal(24, 64)
    plain = quantize_int4(weight, signed=True)
    same = quantize_int4(weight, True, Factor.of(torch.eye(64) * 7))
    assert torch.equal(plain[0], same[0])
    assert torch.equal(plain[1], same[1])


@pytest.mark.parametrize("dead", [0, 31, 32, 95])
def test_inputs_that_were_always_zero_are_rounded_as_any(dead):
    inputs, weight = correlated(512, 96), normal(16, 96)
    inputs[:, dead] = 0
    made = rounded(weight, True, Factor.of(inputs.T @ inputs))
    assert made.isfinite().all()
    absmax = weight.view(16, 3, 32).abs().amax(2)[:, dead // 32]
    assert ((made - weight)[:, dead].abs() < absmax / 3).all()


def test_fewer_samples_than_inputs_are_enough_to_be_finite():
    inputs, weight = correlated(3, 96), normal(16, 96)
    for some in (inputs, inputs * 0, inputs * 1e-15, inputs * 1e15):
        made = rounded(weight, True, Factor.of(some.T @ some))
        assert ((made - weight).abs().amax(1) < weight.abs().amax(1)).all()


def test_with_a_factor_rows_do_not_depend_on_one_another():
    inputs, weight = correlated(512, 96), normal(40, 96)
    factor = Factor.of(inputs.T @ inputs)
    whole = rounded(weight, True, factor)
    for i in range(0, 40, 8):
        part = rounded(weight[i : i + 8].clone(), True, factor)
        torch.testing.assert_close(part, whole[i : i + 8])


@pytest.mark.parametrize("signed", [False, True])
def test_no_rows_are_quantized_to_none(signed):
    factor = Factor.of(torch.eye(64))
    for known in (None, factor):
        packed, scale = quantize_int4(torch.empty(0, 64), signed, known)
        assert packed.shape == (0, 8, 8, 4)
        assert scale.shape == (0, 2, 8)


def test_sums_that_are_a_little_off_are_damped_until_they_have_a_factor():
    """Of inputs that depend on each other, one correlation is above 1."""
    moments = torch.eye(64)
    moments[0, 1] = moments[1, 0] = 1.1
    factor = Factor.of(moments)
    assert factor.upper.isfinite().all()
    weight = normal(8, 64)
    assert (rounded(weight, True, factor) - weight).abs().max() < 1


def test_sums_near_the_largest_float32_have_finite_importance():
    diagonal = torch.full((64,), torch.finfo(torch.float32).max)
    diagonal[1] /= 2
    importance = Factor.of(torch.diag(diagonal)).importance
    assert importance[:3].tolist() == pytest.approx([1, 0.5, 1], rel=0.01)
