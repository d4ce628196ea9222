"""Sizes of several symbols: what is alike when all are equal, and not when they differ.

A kernel writes what its operands say, not what is declared: a result that is too small
would be written over at its end.
"""

import pytest
from hand_built import F32, program
from stateful_programs import Builder

from kvc.schema.errors import BadProgram, LimitExceeded
from kvc.schema.graph import Ref
from kvc.schema.model import Program
from kvc.schema.types import (
    MAX_MULTIPLIED,
    Dim,
    Symbol,
    TensorType,
    add_dims,
    affine,
    floor_divide,
)
from kvc.schema.verify import verify_program
from kvc.schema.verify.dims import Point
from kvc.schema.verify.limits import MAX_SYMBOLS_TOGETHER
from kvc.schema.verify.signatures import Misfit, check_at, divided, sized_together

A, B = affine(0, {"a": 1}), affine(0, {"b": 1})
BOTH = affine(0, {}, {("a", "b"): 1})
HALF, THIRD = floor_divide(A, 2), floor_divide(add_dims(A, B), 3)


def negation(given: tuple[Dim, ...], made: tuple[Dim, ...], count: int = 2) -> Program:
    """Return a program of symbols a, b ... from 1 to 8 that negates a tensor."""
    symbols = {name: Symbol(name, 1, 8) for name in "abcdefghijk"[:count]}
    b = Builder(symbols)
    x, out = b.scratch(TensorType(F32, given)), b.scratch(TensorType(F32, made))
    b.step("aten::neg", [Ref(x)], out)
    run = b.method("run", {"x": x}, [out])
    return program([run], symbols=tuple(symbols.values()))[0]


@pytest.mark.parametrize(
    "dims", [(A, B), (BOTH,), (BOTH, A), (A,), (4,), (HALF, THIRD)]
)
def test_a_result_as_large_as_its_operand_is_sound(dims: tuple[Dim, ...]) -> None:
    verify_program(negation(dims, dims), "x", thorough=True)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((A, B), (A, A)),
        ((A, B), (B, A)),
        ((BOTH,), (affine(0, {"a": 1, "b": -1}, {("a", "b"): 1}),)),
    ],
)
def test_sizes_that_agree_only_where_symbols_are_equal_are_refused(
    given: tuple[Dim, ...], made: tuple[Dim, ...]
) -> None:
    with pytest.raises(BadProgram, match="declared is"):
        verify_program(negation(given, made), "x")


def test_there_may_be_so_many_symbols_together_and_no_more() -> None:
    names = "abcdefghijk"[: MAX_SYMBOLS_TOGETHER + 1]
    fitting = (affine(0, dict.fromkeys(names[:-1], 1)),)
    verify_program(negation(fitting, fitting, len(names)), "x")
    more = (affine(0, dict.fromkeys(names, 1)),)
    with pytest.raises(LimitExceeded, match="symbols together"):
        verify_program(negation(more, more, len(names)), "x")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((HALF,), (floor_divide(A, 3),)),
        ((HALF,), (floor_divide(add_dims(A, 1), 2),)),
        ((add_dims(A, HALF, -1),), (HALF,)),
    ],
)
def test_sizes_that_agree_only_where_they_divide_are_refused(
    given: tuple[Dim, ...], made: tuple[Dim, ...]
) -> None:
    with pytest.raises(BadProgram, match="declared is"):
        verify_program(negation(given, made), "x")


def test_sizes_that_agree_wherever_a_file_is_tried_are_checked_at_the_call() -> None:
    # At 2, 10 and 18, which the verifier tries, a // 8 and (a + 4) // 8 are the same.
    a = {"a": Symbol("a", 2, 18)}
    b = Builder(a)
    x = b.scratch(TensorType(F32, (floor_divide(add_dims(A, 4), 8),)))
    out = b.scratch(TensorType(F32, (floor_divide(A, 8),)))
    b.step("aten::neg", [Ref(x)], out)
    made, _ = program([b.method("run", {"x": x}, [out])], symbols=(*a.values(),))
    verify_program(made, "x", thorough=True)
    graph = made.methods[0].graph
    types = [value.type for value in graph.values]
    assert sized_together(graph) == divided(graph) == {0}
    check_at(graph.instructions[0], types, Point({"a": 9}))
    with pytest.raises(Misfit, match="declared is"):
        check_at(graph.instructions[0], types, Point({"a": 12}))


def test_so_many_factors_of_products_may_be_there_and_no_more() -> None:
    for count, fits in ((MAX_MULTIPLIED, True), (MAX_MULTIPLIED + 1, False)):
        names = tuple("abcdefghijk"[:count])
        dims = (affine(0, {}, {names: 1}),)
        whole = negation(dims, dims, count)
        if fits:
            verify_program(whole, "x")
            continue
        with pytest.raises(LimitExceeded, match="symbols in products"):
            verify_program(whole, "x")


def test_what_a_quotient_divides_may_be_too_large() -> None:
    size = add_dims(A, affine(0, {"b": 2**30 + 1}))
    dims = (floor_divide(size, 2**32),)
    with pytest.raises(LimitExceeded, match="divides"):
        verify_program(negation(dims, dims), "x")
