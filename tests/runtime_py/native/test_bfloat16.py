"""Native products of bfloat16: one result, however many rows there are at once."""

import pytest
import torch
from native_calls import native_graph, run_native
from op_cases import Case
from torch import Tensor


def product(x: Tensor, weight: Tensor, bias: Tensor | None, threads: int = 2) -> Tensor:
    like = (torch.empty(len(x), len(weight), dtype=torch.bfloat16),)
    built = native_graph(Case("aten::linear", (x, weight, bias)), like)
    assert built is not None
    (found,) = run_native(*built, like, threads)
    return found


@pytest.mark.parametrize(("columns", "depth"), [(1, 1), (9, 33), (50, 96)])
@pytest.mark.parametrize("biased", [False, True])
def test_bits_depend_on_neither_threads_nor_how_many_rows_there_are(
    columns: int, depth: int, biased: bool
):
    torch.manual_seed(depth)
    x, weight = (
        torch.randn(20, depth).bfloat16(),
        torch.randn(columns, depth).bfloat16(),
    )
    bias = torch.randn(columns).bfloat16() if biased else None
    whole = product(x, weight, bias, threads=1)
    for threads in (2, 3):
        assert torch.equal(product(x, weight, bias, threads), whole)
    for first, count in ((0, 1), (3, 3), (5, 4), (9, 7)):
        rows = x[first : first + count].contiguous()
        assert torch.equal(product(rows, weight, bias), whole[first : first + count])
    exact = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    torch.testing.assert_close(whole.double(), exact, rtol=0.01, atol=0.02)
