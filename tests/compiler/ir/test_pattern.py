"""Patterns are formulas: names, choices, both ways round, and the last axis."""

import pytest

from kvc.compiler.ir import Node, Value
from kvc.compiler.ir.pattern import LAST, Any, op
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType

KIND = TensorType(DType.FLOAT32, (2, 4))
A, B, C, D = (Value(i, KIND) for i in range(4))
X, Y = Any("x"), Any("y")


def found(pattern, *nodes):
    makers = {value.id: node for node in nodes for value in node.outputs}
    return [dict(each) for each in pattern.matches(nodes[-1], makers)]


def times(a, b, out):
    return Node("aten::mul.Tensor", (a, b), (out,))


def test_products_are_matched_both_ways_round():
    assert found(X * Y, times(A, B, C)) == [{"x": A, "y": B}, {"x": B, "y": A}]


def test_a_name_in_two_places_is_one_argument():
    assert found(X * X, times(A, B, C)) == []
    assert found(X * X, times(A, A, C))[0] == {"x": A}


def test_a_formula_is_followed_to_the_nodes_before():
    nodes = Node("aten::neg", (A,), (B,)), times(B, A, C)
    assert found(-X * X, *nodes) == [{"x": A}]
    assert found(-X * X, nodes[1]) == []  # nothing computes B


def test_a_name_can_stand_for_a_formula():
    nodes = Node("aten::neg", (A,), (B,)), times(C, B, D)
    assert found(Y * Any("minus", -X), *nodes) == [{"y": C, "minus": B, "x": A}]


def test_choices_are_tried_in_turn():
    square = op("aten::pow.Tensor_Scalar", X, 2) | (X * X)
    assert found(square, Node("aten::pow.Tensor_Scalar", (A, 2), (B,))) == [{"x": A}]
    assert {"x": A} in found(square, times(A, A, B))
    assert found(square, Node("aten::pow.Tensor_Scalar", (A, 3), (B,))) == []


def test_a_difference_has_one_way_round():
    minus = Node("aten::sub.Tensor", (A, B, 1), (C,))
    assert found(X - Y, minus) == [{"x": A, "y": B}]
    assert found(X - Y, Node("aten::sub.Tensor", (A, B, 2), (C,))) == []


@pytest.mark.parametrize("axis", [-1, 1])
def test_the_last_axis_has_two_numbers(axis):
    assert found(op("aten::cat", (X, Y), LAST), Node("aten::cat", ((A, B), axis), (C,)))
    mean = Node("aten::mean.dim", (A, (axis,), True), (C,))
    assert found(op("aten::mean.dim", X, LAST, True), mean) == [{"x": A}]


def test_another_axis_or_another_count_is_no_instance():
    pattern = op("aten::cat", (X, Y), LAST)
    assert found(pattern, Node("aten::cat", ((A, B), 0), (C,))) == []
    assert found(pattern, Node("aten::cat", ((A, B, A), -1), (C,))) == []


def test_a_node_without_a_result_is_no_instance():
    check = Node("aten::_assert_async.msg", (A, "no"), ())
    assert list((X * Y).matches(check, {})) == []
