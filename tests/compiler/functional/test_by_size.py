"""Calls that give a view at some sizes and a copy at others, and writes after them."""

from collections.abc import Callable

import pytest
import torch
from eager_parity import run_both
from module_outcomes import Applied
from torch import Tensor

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.functional.by_size import ByLayout
from kvc.compiler.functional.views import Unwritable
from kvc.runtime import load

X = torch.arange(24.0).sin().reshape(3, 4, 2)
N = Dim("n", 1, 6)


def of_an_input(x: Tensor) -> Tensor:
    x.transpose(0, 2).reshape(x.shape).sin_()
    return x * 1


def given_back(x: Tensor) -> Tensor:
    held = x * 1
    turned = held.transpose(0, 2).reshape(x.shape)
    held.add_(1)
    return turned


def pieces(x: Tensor) -> Tensor:
    held = x * 1
    first, _ = held.transpose(0, 1).flatten(1).split((1, 3))
    first[0].mul_(2)
    return held


def contiguous(x: Tensor) -> Tensor:
    held = x * 1
    held.transpose(0, 1).contiguous()[0].mul_(2)
    return held


def in_a_branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > -9, contiguous, lambda x: x * 3, (x,))


BOTH = [pieces, contiguous, in_a_branch, given_back]


@pytest.mark.parametrize("write", BOTH)
@pytest.mark.parametrize("least", [1, 2])
def test_a_write_after_what_is_both_is_as_in_eager(write, least: int, tmp_path):
    if write is given_back and least == 1:
        pytest.skip("torch refuses the trace")
    method = Method("forward", args=(X,), dynamic={"x": {0: Dim("n", least, 6)}})
    sizes = (3, least, 2, 6)
    each = [("forward", (torch.cat([X, X])[:size].clone(),)) for size in sizes]
    run_both(Applied(write), [method], each, tmp_path)


def test_an_input_is_written_at_the_sizes_of_the_view(tmp_path):
    method = Method("forward", args=(X,), dynamic={"x": {0: Dim("n", 2, 6)}})
    compile_program(Applied(of_an_input), [method]).save(tmp_path / "a.kvc")
    with load(tmp_path / "a.kvc") as program, program.session() as session:
        for size in (2, 3, 6):
            given = torch.cat([X, X])[:size].clone()
            wanted = given.clone()
            result = of_an_input(wanted)
            assert torch.equal(session.call("forward", given), result)
            assert torch.equal(given, wanted)


def test_what_depends_on_more_than_ones_is_refused_with_sizes():
    module = Applied(lambda x: x * 1)
    sizes = {"x": {0: torch.export.Dim("n", max=9), 1: torch.export.Dim("m", max=9)}}
    exported = torch.export.export(module, (X[0],), dynamic_shapes=sizes, strict=False)
    (x,) = (n.meta["val"] for n in exported.graph.find_nodes(op="placeholder"))
    n, m = x.shape
    dims = {n.node.expr: (n, Dim("n", 1, 9)), m.node.expr: (m, Dim("m", 1, 9))}
    call = ByLayout(torch.ops.aten.reshape.default, (x.t(), [n, m]), {}, x, x)
    with pytest.raises(
        Unwritable, match=r"view for m = 1, n = 1 and a copy for m = 2, n = 3"
    ):
        call.views(dims)


def written_before(x: Tensor) -> list[Tensor]:
    held = x * 1
    held.add_(1)
    return [held, held.transpose(0, 1).reshape(4, -1)]


def of_a_copy(x: Tensor) -> list[Tensor]:
    held = x * 1
    turned = held.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    turned.reshape(4, -1).mul_(2)
    return [held, turned]


def not_seen_again(x: Tensor) -> Tensor:
    turned = (x * 2).transpose(0, 1).reshape(4, -1)
    turned += 1
    return turned[turned.shape[0] - 4 :]


def always_a_view(x: Tensor) -> Tensor:
    held = x * 1
    held.flatten(1)[:, 3:].mul_(2)
    held.contiguous().add_(1)
    return held


def always_a_copy(x: Tensor) -> list[Tensor]:
    held = x * 1
    turned = held.transpose(1, 2).reshape(-1, 8)
    turned.mul_(2)
    return [held, turned]


ALIKE = [written_before, of_a_copy, not_seen_again, always_a_view, always_a_copy]


@pytest.mark.parametrize("write", ALIKE)
def test_what_is_the_same_for_all_sizes_is_as_in_eager(
    write: Callable[[Tensor], object], tmp_path
):
    method = Method("forward", args=(X,), dynamic={"x": {0: N}})
    each = [("forward", (torch.cat([X, X])[:size].clone(),)) for size in (3, 1, 6)]
    run_both(Applied(write), [method], each, tmp_path)
