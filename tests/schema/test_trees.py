from collections import namedtuple
from dataclasses import dataclass, make_dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvc.schema.trees import Scalar, bind_call, describe_call, flatten, match, unflatten
from kvc.schema.verify.trees import check_call_tree, check_tree


class Tensor:
    pass


@dataclass
class Cache:
    key: object
    length: int


@dataclass(frozen=True)
class OtherCache:
    length: int
    key: object


Pair = namedtuple("Pair", "left right")
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
    assert check_tree(tree) == (len(leaves), [])


def test_a_leaf_may_come_back_as_a_number():
    tree = flatten([Tensor(), Scalar(Tensor())])[1]
    assert tree == '{"list":[0,{"scalar":1}]}'
    x = Tensor()
    assert unflatten(tree, [x, np.array(7)]) == [x, 7]
    assert match(tree, [x, 7]) == [x, 7]


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


def test_records_have_names_and_leaves_by_field():
    tree, leaves, names = describe_call(("x",), ([Cache(A, 3), Pair(B, None)],), {})
    assert leaves == (A, B)
    assert names == ("x[0].key", "x[1].left")
    assert check_call_tree(tree) == 2


def test_a_record_of_any_class_binds_by_its_fields():
    tree, _, _ = describe_call(("x",), (Cache(A, 3),), {})
    for thing in (Cache(B, 3), OtherCache(3, B), {"key": B, "length": 3}):
        assert bind_call(tree, (thing,), {}) == [B]
    tree, _, _ = describe_call(("x",), (Pair(A, B),), {})
    assert bind_call(tree, (Pair(B, C),), {}) == [B, C]


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (Pair(A, 3), "expected a dataclass Cache with key, length, got a namedtuple P"),
        ((A, 3), "expected a dataclass Cache with key, length, got a tuple of 2"),
        (Cache(A, 4), "x.length: this program was compiled for 3, got 4"),
        (Cache(None, 3), "x.key: expected a tensor, got None"),
        (A, "expected a dataclass Cache with key, length, got a Tensor"),
    ],
)
def test_another_record_is_refused(thing, text):
    tree, _, _ = describe_call(("x",), (Cache(A, 3),), {})
    with pytest.raises(ValueError, match=text):
        bind_call(tree, (thing,), {})


def test_a_record_of_private_names_is_refused_with_its_path():
    with pytest.raises(
        ValueError, match=r"result\[0\]: a record has the field '_seen'"
    ):
        flatten([make_dataclass("Cache", ["_seen"])(A)])


def test_records_come_back_with_their_fields():
    built = unflatten(flatten({"c": [Cache(A, 3)], "p": Pair(B, 1.5)})[1], (A, B))
    assert built["c"][0].key is A
    assert built["c"][0].length == 3
    assert built["p"].left is B
    assert tuple(built["p"]) == (B, 1.5)
