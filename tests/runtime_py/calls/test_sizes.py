"""Solving symbols from shapes."""

import pytest

from kvc.runtime import InputMismatch
from kvc.runtime.calls.sizes import Signature
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine, Symbol, TensorType

SYMBOLS = {"s": Symbol("s", 1, 10), "t": Symbol("t", 2, 4)}
S, T = Affine(0, (("s", 1),)), Affine(0, (("t", 1),))


def signature(*dims):
    types = [TensorType(DType.FLOAT32, d) for d in dims]
    return Signature("run", ["a", "b"][: len(types)], types, [], SYMBOLS)


def test_a_symbol_is_solved_from_any_linear_expression():
    assert signature((Affine(1, (("s", 2),)),)).solve([(9,)], {}) == {"s": 4}
    assert signature((Affine(5, (("s", -1),)),)).solve([(2,)], {}) == {"s": 3}


def test_a_second_symbol_follows_from_the_first():
    both = Affine(0, (("s", 1), ("t", 1)))
    assert signature((S, both)).solve([(3, 5)], {}) == {"s": 3, "t": 2}


def test_a_size_that_does_not_divide_is_refused():
    with pytest.raises(InputMismatch, match=r"float32\[2\*s\] with s in 1..10"):
        signature((Affine(0, (("s", 2),)),)).solve([(5,)], {})


def test_inputs_that_share_a_symbol_must_agree():
    with pytest.raises(InputMismatch) as caught:
        signature((S,), (S,)).solve([(3,), (4,)], {})
    assert caught.value.input == "b"
    assert caught.value.expected == "float32[s] with s in 1..10 (here s = 3)"
    assert caught.value.found == "float32[4]"


def test_bounds_are_inclusive():
    assert signature((T,)).solve([(2,)], {}) == {"t": 2}
    assert signature((T,)).solve([(4,)], {}) == {"t": 4}
    for size in (1, 5):
        with pytest.raises(InputMismatch, match=r"t in 2\.\.4"):
            signature((T,)).solve([(size,)], {})


def test_sizes_that_are_fixed_are_kept():
    assert signature((S,)).solve([(3,)], {"s": 3, "t": 4}) == {"s": 3, "t": 4}
    with pytest.raises(InputMismatch, match="here s = 2"):
        signature((S,)).solve([(3,)], {"s": 2})


def test_a_symbol_that_nothing_settles_is_named():
    with pytest.raises(InputMismatch, match="nothing settles s"):
        signature((Affine(0, (("s", 1), ("t", 1))),)).solve([(5,)], {})


def test_a_wrong_rank_is_refused():
    with pytest.raises(
        InputMismatch, match=r"expected float32\[3\], got float32\[3, 1\]"
    ):
        signature((3,)).solve([(3, 1)], {})
