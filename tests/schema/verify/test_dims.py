"""Sizes of several symbols: what is alike when all are equal, and not when they differ.

A kernel writes what its operands say, not what is declared: a result that is too small
would be written over at its end.
"""

import pytest
from hand_built import F32, program
from stateful_programs import Builder

from kvc.schema.errors import BadProgram, LimitExceeded
from kvc.schema.model import Program, Ref
from kvc.schema.types import Dim, Symbol, TensorType, affine
from kvc.schema.verify import verify_program
from kvc.schema.verify.limits import MAX_SYMBOLS_TOGETHER

A, B = affine(0, {"a": 1}), affine(0, {"b": 1})
BOTH = affine(0, {}, {("a", "b"): 1})


def negation(given: tuple[Dim, ...], made: tuple[Dim, ...], count: int = 2) -> Program:
    """Return a program of symbols a, b ... from 1 to 8 that negates a tensor."""
    symbols = {name: Symbol(name, 1, 8) for name in "abcdefghijk"[:count]}
    b = Builder(symbols)
    x, out = b.scratch(TensorType(F32, given)), b.scratch(TensorType(F32, made))
    b.step("aten::neg", [Ref(x)], out)
    run = b.method("run", {"x": x}, [out])
    return program([run], symbols=tuple(symbols.values()))[0]


@pytest.mark.parametrize("dims", [(A, B), (BOTH,), (BOTH, A), (A,), (4,)])
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
