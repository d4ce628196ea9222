"""Maxima of windows, with the indices of the maxima and without."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from daily import some_of_each
from native_calls import native_graph, run_native
from op_cases import CASES, Case, kind_of
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Method, compile_program
from kvc.runtime import load
from kvc.runtime.delegates.cpu.arguments import INDEXED
from kvc.runtime.native import Steps

POOLS = some_of_each(
    4,
    [
        case
        for case in CASES
        if case.op in INDEXED and native_graph(case, case.eager()) is not None
    ],
    kind_of,
)


@pytest.fixture
def added(monkeypatch) -> list[tuple[str, Sequence[object]]]:
    """Return the kernels of steps that are added, each with its tensors."""
    found: list[tuple[str, Sequence[object]]] = []
    add = Steps.add

    def note(self, kernel, tensors, *rest):
        found.append((kernel, tensors))
        return add(self, kernel, tensors, *rest)

    monkeypatch.setattr(Steps, "add", note)
    return found


def read(case: Case, count: int, threads: int) -> list[Tensor]:
    """Return the first `count` results; nobody reads the others."""
    expected = case.eager()
    built = native_graph(case, expected)
    assert built is not None
    graph, tensors = built
    graph = replace(graph, outputs=graph.outputs[:count])
    return run_native(graph, tensors, expected[:count], threads)


def left_out(added: Sequence[tuple[str, Sequence[object]]], op: str) -> list[bool]:
    """Return of each step of an operator whether it writes no indices."""
    return [tensors[1] is None for kernel, tensors in added if kernel == op]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", POOLS)
def test_maxima_without_indices_are_those_with_them(added, case: Case, threads: int):
    values, indices = case.eager()
    both = read(case, 2, threads)
    (alone,) = read(case, 1, threads)
    assert left_out(added, case.op) == [False, True]
    for found in (both[0], alone):
        torch.testing.assert_close(found, values, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(both[1], indices)


@pytest.mark.parametrize("case", POOLS)
def test_so_are_those_of_operands_with_gaps(case: Case):
    values, indices = case.eager()
    found = [*read(case.strided(), 2, 2), *read(case.strided(), 1, 2)]
    assert torch.equal(found[1], indices)
    for each in (found[0], found[2]):
        torch.testing.assert_close(each, values, rtol=0, atol=0, equal_nan=True)


class Pools(nn.Module):
    """Pools, some of whose indices are results."""

    def __init__(self, shown: bool) -> None:
        super().__init__()
        self.shown = shown

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        wide, places = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
        few, chosen = functional.adaptive_max_pool2d(x, (3, 2), return_indices=True)
        return (wide * 2, few, *((places, chosen) if self.shown else ()))


@pytest.mark.parametrize("shown", [False, True])
def test_a_compiled_model_reads_the_indices_or_not(tmp_path: Path, added, shown: bool):
    torch.manual_seed(0)
    x, path = torch.randn(2, 3, 11, 14), tmp_path / "model.kvc"
    x[0, 0, 3, 4], x[1, 2, 5, 6] = torch.nan, torch.inf
    model = Pools(shown)
    compile_program(model, [Method("forward", (x,))], "cpu_fp32").save(path)
    with load(path) as program:
        found = program.session().call("forward", x)
    torch.testing.assert_close(found, model(x), rtol=0, atol=0, equal_nan=True)
    for op in ("aten::max_pool2d_with_indices", "aten::adaptive_max_pool2d"):
        assert left_out(added, op) == [not shown]
