"""Bags of embedding rows that are not there are refused before they are read."""

import pytest
import torch

from kvc.runtime.kernels.table import load_kernels
from kvc.schema.errors import IndexOutOfRange


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("offsets", [[1, 3], [0, 5, 2], [0, -3, 2], [0, 7]])
def test_offsets_that_do_not_rise_are_refused(mode: int, offsets: list[int]) -> None:
    kernel = load_kernels()["aten::_embedding_bag_forward_only"]
    out, given = torch.zeros(len(offsets), 4), torch.tensor(offsets)
    arguments = (torch.ones(9, 4), torch.arange(6), given, mode, None, False, -1)
    with pytest.raises(ValueError, match="offsets must rise from 0 to at most 6"):
        kernel(out, *arguments)
    assert not out.any()


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("index", [-1, 9, 2**40])
def test_an_index_that_the_embedding_has_not_is_refused(mode: int, index: int) -> None:
    kernel = load_kernels()["aten::_embedding_bag_forward_only"]
    given = (torch.tensor([0, index]), torch.tensor([0]), mode, None, False, -1)
    with pytest.raises(IndexOutOfRange):
        kernel(torch.zeros(1, 4), torch.ones(9, 4), *given)


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(("offsets", "ended"), [([], False), ([0], True)])
def test_no_bags_are_nothing(mode: int, offsets: list[int], ended: bool) -> None:
    kernel = load_kernels()["aten::_embedding_bag_forward_only"]
    starts = torch.tensor(offsets, dtype=torch.int64)
    given = (torch.ones(9, 4), torch.arange(6), starts, mode, None, ended, -1)
    kernel(torch.zeros(0, 4), *given)
