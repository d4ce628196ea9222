"""Kernels that pick elements: an index out of range is named."""

import pytest
import torch

from kvc.runtime.kernels.table import load_kernels
from kvc.schema.errors import IndexOutOfRange

TABLE = torch.arange(8.0).view(4, 2)
SCALES = torch.ones(4)


@pytest.mark.parametrize("index", [-1, 4])
@pytest.mark.parametrize(
    ("op", "before"),
    [
        ("aten::embedding", (TABLE,)),
        ("aten::index_select", (TABLE, 0)),
        ("kvc::embedding_q8", (TABLE.to(torch.int8), SCALES)),
    ],
)
def test_an_index_out_of_range_is_named(op, before, index):
    out, indices = torch.zeros(2, 2), torch.tensor([3, index])
    with pytest.raises(IndexOutOfRange) as caught:
        load_kernels()[op](out, *before, indices)
    assert caught.value.facts == {"place": "", "index": index, "size": 4}
    assert not out.any()  # it may be the memory of a state
