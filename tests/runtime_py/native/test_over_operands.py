"""Native kernels of pointwise ops: the result may be written over an operand."""

from dataclasses import replace

import pytest
import torch
from kernel_calls import bits
from native_calls import native_graph, run_native
from op_cases import CASES, Case
from torch import Tensor

from kvc.schema.graph import Alias, Graph, Instruction, Ref, Scratch
from kvc.schema.ops import OPS

CLONE = "aten::clone"


def over(graph: Graph, place: int) -> Graph:
    """Return the graph with its result over a copy of the operand number `place`."""
    (step,) = graph.instructions
    (result,) = step.results
    value = graph.values[place]
    at = graph.scratch_nbytes
    nbytes = -(-max(1, value.type.max_nbytes({})) // 64) * 64
    copied = len(graph.values)
    arguments = tuple(Ref(copied) if a == Ref(place) else a for a in step.arguments)
    values = list(graph.values)
    values[result] = replace(values[result], storage=Alias(copied))
    values.append(replace(value, storage=Scratch(at, nbytes)))
    return replace(
        graph,
        values=tuple(values),
        instructions=(
            Instruction(CLONE, (Ref(place),), (copied,)),
            replace(step, arguments=arguments),
        ),
        scratch_nbytes=at + nbytes,
    )


def placements() -> list[tuple[int, Case, Tensor, int]]:
    found = []
    for number, case in enumerate(CASES):
        if not OPS[case.op].pointwise:
            continue
        with torch.inference_mode():
            (expected,) = case.eager()
        built = native_graph(case, [expected])
        if built is None:
            continue
        graph, tensors = built
        (result,) = graph.instructions[0].results
        found += [
            (number, case, expected, place)
            for place in tensors
            if graph.values[place].type == graph.values[result].type
        ]
    return found


PLACEMENTS = placements()


def check_over(case: Case, expected: Tensor, place: int) -> None:
    built = native_graph(case, [expected])
    assert built is not None
    graph, tensors = built
    (apart,) = run_native(graph, tensors, [expected], 2)
    (found,) = run_native(over(graph, place), tensors, [expected], 2)
    assert bits(found) == bits(apart)


@pytest.mark.parametrize(
    ("case", "expected", "place"),
    [
        pytest.param(case, expected, place, id=f"{n}-{case.op[6:]}-{place}")
        for n, case, expected, place in PLACEMENTS
    ],
)
def test_a_result_over_an_operand_has_the_bits_of_one_apart(case, expected, place):
    check_over(case, expected, place)


def test_every_pointwise_kernel_is_tried():
    tried = {case.op for _, case, _, _ in PLACEMENTS}
    bools = {"aten::logical_and", "aten::logical_not", "aten::logical_or"}
    assert {"aten::gelu", "kvc::glu", "aten::silu", "aten::where.self"} <= tried
    assert len(tried) > 90, sorted(tried - bools)


LENGTHS = (*range(1, 40), 63, 64, 65, 511, 512, 513, 100_003)


@pytest.mark.parametrize(
    ("op", "count", "more"),
    [
        ("aten::gelu", 1, ("none",)),
        ("aten::gelu", 1, ("tanh",)),
        ("aten::silu", 1, ()),
        ("aten::exp", 1, ()),
        ("aten::tanh", 1, ()),
        ("aten::add.Tensor", 2, (1,)),
        ("kvc::glu", 2, ("silu",)),
        ("kvc::glu", 2, ("gelu",)),
    ],
)
def test_rows_of_any_length_are_written_over(op, count, more):
    torch.manual_seed(0)
    for length in LENGTHS:
        given = tuple(torch.randn(length) for _ in range(count))
        for place in range(count):
            check_over(Case(op, (*given, *more)), given[0], place)
