"""Operators that kvc takes apart give the dtype that they have in eager."""

import pytest
import torch
from eager_parity import run_both
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Method


class Products(nn.Module):
    def addbmm(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.addbmm(x, a, b, beta=2, alpha=3)

    def bilinear(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return functional.bilinear(x[:, :4], b[0, :2, :2].reshape(1, 4), a)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.float32])
@pytest.mark.parametrize("name", ["addbmm", "bilinear"])
def test_a_sum_of_products_has_the_dtype_of_its_operands(name, dtype, tmp_path):
    x = torch.arange(20).reshape(1, 20)[:, :5].to(dtype)
    a = torch.arange(48).reshape(3, 4, 4).to(dtype)
    b = torch.arange(60).reshape(3, 4, 5).to(dtype)
    args = (x.expand(4, 5).clone(), a, b) if name == "addbmm" else (x, a, b)
    run_both(Products(), [Method(name, args=args)], [(name, args)], tmp_path)
