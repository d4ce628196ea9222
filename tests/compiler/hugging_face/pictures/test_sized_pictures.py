"""Convolutions and pools over patches, whose windows lie side by side."""

import pytest
import torch
from torch import nn

from kvc.compiler.hugging_face.pictures.sized_pictures import as_products

SIDE_BY_SIDE = [
    nn.Conv2d(4, 6, 3, stride=3),
    nn.Conv2d(4, 6, (2, 3), stride=(2, 3), bias=False),
    nn.AvgPool2d(3, stride=3),
    nn.AvgPool2d((2, 3)),
]
OTHERS = [
    nn.Conv2d(4, 6, 3, stride=2),
    nn.Conv2d(4, 6, 3, stride=3, padding=1),
    nn.AvgPool2d(3, stride=2),
    nn.AvgPool2d(3, padding=1),
    nn.AvgPool2d(3, ceil_mode=True),
    nn.AvgPool2d(3, divisor_override=2),
]


@pytest.mark.parametrize("layer", SIDE_BY_SIDE, ids=repr)
def test_the_result_is_the_same(layer):
    pixels = torch.randn(2, 4, 11, 13, generator=torch.Generator().manual_seed(1))
    wanted = layer(pixels)
    model = nn.Sequential(layer)
    with as_products(model):
        assert "forward" in vars(layer)
        torch.testing.assert_close(model(pixels), wanted)
    assert "forward" not in vars(layer)


@pytest.mark.parametrize("layer", OTHERS, ids=repr)
def test_others_are_left_alone(layer):
    with as_products(nn.Sequential(layer)):
        assert "forward" not in vars(layer)
