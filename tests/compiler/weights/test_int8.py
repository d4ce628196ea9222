import pytest
import torch

from kvc.compiler.weights.int8 import quantize_channels, quantize_int8_blocks


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


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
    assert scale[1, 0] == 1
