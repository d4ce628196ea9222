"""int8 rows and weights against the reference."""

import pytest
import torch
import vulkan_here
from kernel_calls import run
from native_calls import native_graph
from op_cases import Case
from torch import Tensor
from vulkan_calls import run_on_device


def both(case: Case, *like: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Return the results on the device, and those of the reference."""
    wanted = run(case.op, case.arguments, [(each.shape, each.dtype) for each in like])
    built = native_graph(case, like)
    assert built is not None
    return run_on_device(vulkan_here.device(), *built, like), wanted


def quantized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = x[..., :1]
    like = x.to(torch.int8), rows, rows.to(torch.int32)
    q, scale, zero = run("kvc::quantize_rows", (x,), [(t.shape, t.dtype) for t in like])
    return q, scale, zero


@pytest.mark.parametrize("shape", [(1, 7), (3, 64), (2, 5, 130)])
def test_rows_are_quantized_as_the_recipe_says(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    x[..., 0, :] = x[..., 0, :].abs()  # a row that begins at zero
    rows = x[..., :1]
    like = x.to(torch.int8), rows, rows.to(torch.int32)
    found, wanted = both(Case("kvc::quantize_rows", (x,)), *like)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-6, atol=0)
    for one, other in ((found[0], wanted[0]), (found[2], wanted[2])):
        # A value near the middle of two steps may become the other one.
        difference = (one.int() - other.int()).abs()
        assert difference.max() <= 1
        assert difference.float().mean() < 0.01


def test_a_row_of_zeros_has_scale_one() -> None:
    x = torch.zeros(2, 8)
    like = x.to(torch.int8), x[:, :1], x[:, :1].int()
    found, wanted = both(Case("kvc::quantize_rows", (x,)), *like)
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("rows", [1, 8, 9, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_integer_sums_are_exact(rows: int, bias: bool) -> None:
    q, scale, zero = quantized(torch.randn(rows, 100) * 3)
    weight = torch.randint(-127, 128, (33, 100), dtype=torch.int8)
    more = torch.randn(33) if bias else None
    arguments = (q, scale, zero, weight, torch.rand(33), more)
    like = torch.empty(rows, 33)
    found, wanted = both(Case("kvc::linear_qd8", arguments), like)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-6, atol=1e-5)


def test_rows_of_a_table_are_widened() -> None:
    table = torch.randint(-127, 128, (9, 12), dtype=torch.int8)
    index = torch.tensor([[0, 8, 3], [3, 3, 1]])
    case = Case("kvc::embedding_q8", (table, torch.rand(9), index))
    found, wanted = both(case, torch.empty(2, 3, 12))
    assert torch.equal(found[0], wanted[0])
