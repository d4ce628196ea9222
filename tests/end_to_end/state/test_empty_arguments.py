"""Arguments without elements, which a method writes into: static and dynamic sizes."""

import numpy as np
import pytest
import torch
from torch import nn

from kvc.compiler import Dim, Method, compile_program
from kvc.runtime import load

X = torch.ones(2, 3)


class Writes(nn.Module):
    def adds(self, x, past):
        past.add_(1)
        return x * 2

    def joins(self, x, past):
        past[:, 0:] = 3
        return torch.cat([past, x], 1)


def check(program, name, shape):
    """Compare with eager, with tensors and with arrays."""
    wanted, mine, array = torch.ones(shape), torch.ones(shape), np.ones(shape, "f4")
    result = getattr(Writes(), name)(X, wanted)
    assert torch.equal(getattr(program, name)(X, mine), result)
    assert np.array_equal(getattr(program, name)(X.numpy(), array), result)
    assert torch.equal(mine, wanted)
    assert np.array_equal(array, wanted)


@pytest.mark.parametrize("name", ["adds", "joins"])
def test_an_empty_argument_of_a_fixed_size_is_written(tmp_path, name):
    method = Method(name, (X, torch.zeros(2, 0)))
    compile_program(Writes(), [method]).save(tmp_path / "m.kvc")
    with load(tmp_path / "m.kvc") as program:
        check(program, name, (2, 0))


@pytest.mark.parametrize("name", ["adds", "joins"])
@pytest.mark.parametrize("example", [0, 1, 3])
def test_an_argument_may_be_empty_at_one_call_only(tmp_path, name, example):
    dynamic = {"past": {1: Dim("length", 0, 8)}}
    method = Method(name, (X, torch.zeros(2, example)), dynamic=dynamic)
    compile_program(Writes(), [method]).save(tmp_path / "m.kvc")
    with load(tmp_path / "m.kvc") as program:
        for length in (0, 1, 8, 0):
            check(program, name, (2, length))
