"""Pointwise results that are written over an operand in scratch memory."""

import pytest

from kvc.schema.dtypes import DType
from kvc.schema.errors import FormatError
from kvc.schema.graph import Alias, Constant, Graph, Instruction, Ref, Scratch, Value
from kvc.schema.types import TensorType
from kvc.schema.verify.dims import CheckedTypes
from kvc.schema.verify.graphs import GraphChecker
from kvc.schema.verify.limits import Reporter
from kvc.schema.verify.values import Surroundings

ROWS = TensorType(DType.FLOAT32, (4,))
INTEGERS = TensorType(DType.INT32, (4,))
ADD = "aten::add.Tensor"


def step(op, *arguments):
    """Return an instruction that makes value 3."""
    return Instruction(op, arguments, (3,))


NEGATE = step("aten::neg", Ref(2))


def refused(last, *before, place=2, outputs=(3,), kind=ROWS, base=ROWS):
    """Return why a graph is refused, or "".

    Value 0 is a constant, value 1 the input, value 2 is computed from it, and value 3
    lies over the value number `place`.
    """
    count = 4 + sum(len(one.results) for one in before)
    values = (
        Value(ROWS, Constant(0)),
        Value(base, Scratch(0, 16)),
        Value(base, Scratch(64, 16)),
        Value(kind, Alias(place)),
        *(Value(ROWS, Alias(2)) for _ in range(4, count)),
    )
    made = Instruction("aten::flip", (Ref(1), (0,)), (2,))
    graph = Graph(values, (1,), outputs, (made, *before, last), 4096, 0)
    report = Reporter("m.kvc")
    around = Surroundings("method 'f'", [ROWS], (), CheckedTypes((), report))
    try:
        GraphChecker(report).check(graph, around, thorough=True)
    except FormatError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "last",
    [
        NEGATE,
        step(ADD, Ref(1), Ref(2), 1),
        step(ADD, Ref(2), Ref(2), 1),
        step("kvc::glu", Ref(1), Ref(2), "silu"),
    ],
)
def test_a_pointwise_result_is_written_over_its_operand(last):
    assert not refused(last)


def test_a_result_that_is_not_pointwise_is_not():
    assert "fresh kind may not lie" in refused(step("aten::flip", Ref(2), (0,)))


def test_it_is_written_over_operands_only():
    assert "fresh kind may not lie" in refused(step("aten::neg", Ref(1)))


def test_it_is_written_over_no_input():
    assert "fresh kind may not lie" in refused(step("aten::neg", Ref(1)), place=1)


def test_it_is_written_over_no_constant():
    assert "fresh kind may not lie" in refused(step("aten::neg", Ref(0)), place=0)


def test_it_is_written_over_its_own_type_only():
    found = refused(step("aten::div.Scalar", Ref(2), 2.0), base=INTEGERS)
    assert "writes float32[4] over a value of int32[4]" in found


def test_what_it_is_written_over_is_not_read_later():
    assert "is overwritten before the end" in refused(NEGATE, outputs=(3, 2))


VIEW = Instruction("aten::alias", (Ref(2),), (4,))


def test_views_of_what_it_is_written_over_are_not_read_later():
    assert not refused(NEGATE, VIEW)
    assert "is overwritten before the end" in refused(NEGATE, VIEW, outputs=(3, 4))


def test_it_is_written_over_no_view():
    last = step("aten::neg", Ref(4))
    assert "is not the whole of its memory" in refused(last, VIEW, place=4)


def test_it_reads_no_view_of_what_it_is_written_over():
    last = step(ADD, Ref(2), Ref(4), 1)
    assert "memory that another operand reads" in refused(last, VIEW)
