import pytest

from kvc.compiler import Dim
from kvc.compiler.request.spec import ModelSpec
from kvc.schema.errors import CompileError


def test_a_dim_may_be_nought():
    assert Dim("past", 0, 8).lower == 0


@pytest.mark.parametrize(("lower", "upper"), [(-1, 4), (3, 2), (1, 2**31)])
def test_bounds_that_make_no_sense_are_refused(lower, upper):
    with pytest.raises(CompileError, match=f"lower {lower} and upper {upper}$"):
        Dim("seq", lower, upper)


def test_a_name_that_is_no_identifier_is_refused():
    with pytest.raises(CompileError, match="'a b' is not an identifier"):
        Dim("a b", 1, 2)


def test_a_model_need_not_say_anything_of_states():
    assert ModelSpec(None, ()).states == ()
