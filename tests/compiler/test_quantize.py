import numpy as np
import pytest
import torch
from eight_rows import one_by_one, unpack_int4

from kvc.compiler.quantize import (
    int8_block_scales,
    quantize_blocks,
    quantize_channels,
    quantize_int8_blocks,
)

SMALLEST = torch.finfo(torch.bfloat16).tiny


def widened(weight):
    """Return what the int4 form of a matrix stands for, float32 [out, in]."""
    packed, scale = quantize_blocks(weight)
    values = torch.from_numpy(unpack_int4(packed.numpy())).float()
    scales = one_by_one(scale).float()
    return (values.view(-1, 32) * scales.reshape(-1, 1)).view(weight.shape)


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def error_over(weight, end):
    """Return the squared error with the scale absmax / end, rounded to bfloat16."""
    blocks = weight.view(-1, 32)
    scale = (blocks.abs().amax(1, keepdim=True) / end).bfloat16().float()
    values = (blocks / scale).round().clamp(-8, 7)
    return (values * scale - blocks).square().sum(1)


def test_values_that_int4_can_say_come_back_as_they_were():
    weight = (torch.arange(512).view(16, 32) % 16 - 8) * 0.25
    assert torch.equal(widened(weight), weight)


def test_two_values_share_a_byte_the_first_in_the_low_half():
    weight = torch.zeros(8, 32)
    weight[0, 0], weight[0, 1], weight[0, 3] = -8, 7, 1
    packed, scale = quantize_blocks(weight)
    assert scale.tolist() == [[[1.0] * 8]]
    assert packed.dtype is torch.uint8
    assert packed[0, 0, 0].tolist() == [0xF0, 0x98, 0x88, 0x88]


def test_four_bytes_of_a_row_lie_beside_those_of_the_next():
    weight = torch.zeros(16, 64)
    weight[8:, 0] = -8
    weight[11, 40] = 5
    packed, scale = quantize_blocks(weight)
    assert packed.shape == (2, 8, 8, 4)
    assert packed.reshape(-1)[8 * 8 * 4 + (5 * 8 + 3) * 4] != 0x88
    changed = (packed != 0x88).nonzero().tolist()
    assert changed == [*([1, 0, i, 0] for i in range(8)), [1, 5, 3, 0]]
    assert scale.shape == (2, 2, 8)
    assert (scale[1, 1] != 1).nonzero().tolist() == [[3]]


def test_each_block_of_32_has_a_scale_of_its_own():
    weight = torch.cat([torch.full((24, 32), 8.0), torch.full((24, 32), -0.5)], 1)
    packed, scale = quantize_blocks(weight)
    assert packed.shape == (3, 8, 8, 4)
    assert scale.shape == (3, 2, 8)
    assert scale.dtype is torch.bfloat16
    assert torch.allclose(widened(weight), weight, rtol=0.01)
    assert (scale[:, 0] / scale[:, 1] > 10).all()


def test_a_block_takes_the_scale_with_the_least_error():
    weight = normal(56, 64)
    found = (widened(weight) - weight).view(-1, 32).square().sum(1)
    each = torch.stack([error_over(weight, end) for end in (7, 7.5, 8, 8.5)])
    torch.testing.assert_close(found, each.amin(0))
    assert len(set(each.argmin(0).tolist())) == 4, "each is the best one somewhere"


def test_errors_are_at_most_what_a_cut_tail_costs():
    weight = normal(56, 64)
    absmax = weight.view(-1, 32).abs().amax(1).repeat_interleave(32).view(56, 64)
    assert ((widened(weight) - weight).abs() <= absmax * (1.51 / 8.5)).all()


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-40, SMALLEST, -SMALLEST * 3])
def test_a_block_too_small_for_a_normal_scale_is_zeros(number):
    packed, scale = quantize_blocks(torch.full((8, 32), number))
    assert (scale == 1).all()
    assert (packed == 0x88).all()


def test_every_scale_is_normal_and_positive():
    weight = normal(64, 64) * torch.logspace(-45, 30, 64)[:, None]
    scale = quantize_blocks(weight)[1].float()
    assert scale.isfinite().all()
    assert (scale >= SMALLEST).all()


@pytest.mark.parametrize("size", [3e38, 1e25, 1e19, 1e-20, 1e-30])
def test_a_block_of_any_size_takes_the_scale_with_the_least_error(size):
    """Errors whose squares float32 cannot hold are compared all the same."""
    weight = normal(8, 64).clamp(-1, 1) * size
    found = (widened(weight).double() - weight.double()) / size
    alike = widened(weight / size).double() - (weight / size).double()
    least, same = (e.view(-1, 32).square().sum(1) for e in (found, alike))
    torch.testing.assert_close(least, same, rtol=0.1, atol=1e-3)
    assert least.sum() > 0


def test_rows_do_not_depend_on_one_another():
    weight = normal(40, 96)
    packed, scale = quantize_blocks(weight)
    for i in range(5):
        one = quantize_blocks(weight[8 * i : 8 * i + 8])
        np.testing.assert_array_equal(one[0], packed[i : i + 1])
        assert torch.equal(one[1], scale[i : i + 1])


def test_every_scale_of_a_row_is_normal_and_positive():
    weight = normal(80, 64) * torch.logspace(-45, 30, 80)[:, None]
    weight[3] = 0
    values, scale = quantize_channels(weight)
    assert scale.isfinite().all()
    assert (scale >= torch.finfo(torch.float32).tiny).all()
    ones = scale == 1
    assert 2 < ones.sum() < 15
    assert (values[ones] == 0).all()
    assert (values[~ones].abs().amax(1) == 127).all()


@pytest.mark.parametrize(
    ("columns", "count"),
    [
        (1, 1),
        (33, 1),
        (288, 3),
        (320, 2),
        (576, 3),
        (896, 4),
        (1000, 1),
        (2048, 8),
        (4864, 19),
        (32 * 37, 37),
    ],
)
def test_int8_blocks_are_as_few_as_fit_and_multiples_of_32(columns: int, count: int):
    values, scale = quantize_int8_blocks(normal(2, columns))
    assert scale.shape == (2, count)
    assert values.shape == (2, columns)


def test_each_block_of_a_row_is_quantized_by_its_own_largest_value():
    weight = normal(3, 512)
    weight[:, 256:] /= 100
    weight[1, :256] = 0
    values, scale = quantize_int8_blocks(weight)
    halves = quantize_channels(weight.view(6, 256))
    assert torch.equal(values.view(6, 256), halves[0])
    assert torch.equal(scale.view(6), halves[1])
    assert torch.equal(int8_block_scales(weight), scale)
    assert scale[1, 0] == 1
