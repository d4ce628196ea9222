import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvc.schema.trees import (
    bind_call,
    check_call_tree,
    check_tree,
    describe_call,
    flatten,
    match,
    unflatten,
)


class Tensor:
    pass


A, B, C = Tensor(), Tensor(), Tensor()
TREES = st.recursive(
    st.one_of(
        st.builds(Tensor),
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(), inner, max_size=4),
    ),
    max_leaves=12,
)


@given(TREES)
@settings(max_examples=80, deadline=None)
def test_a_structure_comes_back(structure):
    leaves, tree = flatten(structure)
    assert unflatten(tree, leaves) == structure
    assert match(tree, structure) == list(leaves)
    assert check_tree(tree) == len(leaves)


def test_leaves_are_numbered_in_the_order_of_a_walk():
    leaves, _ = flatten({"b": (A, [B]), "a": C})
    assert leaves == (A, B, C)


def test_a_call_is_described_by_parameter():
    tree, leaves, names = describe_call(
        ("x", "past", "n"), (A,), {"past": [{"k": B}], "n": 3}
    )
    assert leaves == (A, B)
    assert names == ("x", "past[0].k")
    assert check_call_tree(tree) == 2


def test_arguments_bind_by_position_and_by_name():
    tree, _, _ = describe_call(("x", "y"), (A, (B,)), {})
    assert bind_call(tree, (A, (B,)), {}) == [A, B]
    assert bind_call(tree, (A,), {"y": [B]}) == [A, B]
    assert bind_call(tree, (), {"y": (B,), "x": A}) == [A, B]


def test_an_argument_without_tensors_may_be_left_out():
    tree, _, _ = describe_call(("x", "flag"), (A, True), {})
    assert bind_call(tree, (A,), {}) == [A]


def test_one_leaf_may_be_optional():
    tree, _, _ = describe_call(("x", "lengths", "y"), (A, B, (A,)), {})
    assert bind_call(tree, (A,), {"y": (A,)}, optional=1) == [A, None, A]
    assert bind_call(tree, (A, None, (A,)), {}, optional=1) == [A, None, A]
    assert bind_call(tree, (A, B, (A,)), {}, optional=1) == [A, B, A]
    for other in (None, 0, 2):
        with pytest.raises(ValueError, match="lengths: missing"):
            bind_call(tree, (A,), {"y": (A,)}, optional=other)
    with pytest.raises(ValueError, match="y: missing"):
        bind_call(tree, (A, B), {}, optional=2)


def test_positions_count_all_parameters():
    tree, _, _ = describe_call(("x", "mask", "past"), (A,), {"past": B})
    assert bind_call(tree, (A,), {"past": B}) == [A, B]
    with pytest.raises(ValueError, match="mask: this program was compiled without it"):
        bind_call(tree, (A, B), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "x: missing"),
        ((A, B), {}, "2 positional arguments"),
        ((A,), {"x": A}, "x: given twice"),
        ((A,), {"z": A}, "z: no such parameter"),
        (([A],), {}, r"x: expected a dict with 'past', 'n', got a list of 1"),
        (
            ({"past": [A], "n": 1},),
            {},
            r"x.past: expected a list of 2, got a list of 1",
        ),
        (
            ({"past": [A, [B]], "n": 1},),
            {},
            r"x.past\[1\]: expected a tensor, got a list",
        ),
        (
            ({"past": [A, B], "n": 2},),
            {},
            "x.n: this program was compiled for 1, got 2",
        ),
        (({"past": [A, B], "n": True},), {}, "x.n: this program was compiled for 1"),
        (
            ({"past": [A, None], "n": 1},),
            {},
            r"x.past\[1\]: expected a tensor, got None",
        ),
    ],
)
def test_a_call_that_differs_is_refused_with_its_path(args, kwargs, text):
    tree, _, _ = describe_call(("x",), ({"past": [A, B], "n": 1},), {})
    with pytest.raises(ValueError, match=text):
        bind_call(tree, args, kwargs)


def test_what_is_no_tree_is_refused_with_its_path():
    with pytest.raises(ValueError, match=r"x\[0\]: a set cannot be"):
        describe_call(("x",), ([{1}],), {}, lambda thing: isinstance(thing, Tensor))
    with pytest.raises(ValueError, match="the key 1 is not text"):
        flatten({1: A})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[" * 100_000,
        "1",
        "true",
        "null",
        '{"tuple":0}',
        '{"set":[]}',
        '{"tuple":[0,0]}',
        '{"tuple":[1,0]}',
        '{"constant":[]}',
        '{"constant":1,"tuple":[]}',
        '{"dict":[0]}',
        '{"dict":[["a",0],["a",1]]}',
        '{"dict":[[1,0]]}',
        '{"list":[' * 40 + "0" + "]}" * 40,
    ],
)
def test_a_text_that_is_no_tree_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        check_tree(text)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "{}",
        '{"parameters":["x"],"arguments":0}',
        '{"parameters":[1],"arguments":[]}',
        '{"parameters":["x"],"arguments":[["y",0]]}',
        '{"parameters":["x","x"],"arguments":[["x",0]]}',
        '{"parameters":["x","y"],"arguments":[["y",0],["x",1]]}',
    ],
)
def test_a_text_that_is_no_call_is_refused(text):
    with pytest.raises(ValueError, match=r"\w"):
        check_call_tree(text)
