from dataclasses import replace

import pytest
import torch
from ir_samples import CACHE, constant, method, node, program, value

from kvc.compiler.ir.verify import Malformed, VerifiedNodes, sample_sizes, verify
from kvc.schema.types import Affine, Symbol

SEQ = Affine(0, (("seq", 1),))
SYMBOLS = (Symbol("seq", 1, 8),)
X, Y, W = value(0, 2, 4), value(1, 2, 4), value(2, 2, 4)
OLD, NEW = value(3, *CACHE), value(4, *CACHE)
NEG = node("aten::neg", X, to=Y)
STEP = method(
    NEG,
    node("aten::neg", OLD, to=NEW),
    inputs=(X,),
    constants=((W, "w"),),
    state_in=((OLD, "k"),),
    state_out=((NEW, "k"),),
    outputs=(Y,),
)
CONSTANTS = (constant("w", torch.ones(2, 4)),)
GOOD = program(STEP, constants=CONSTANTS, states=("k",))


def refusal(given):
    with pytest.raises(Malformed) as caught:
        verify(given)
    return caught.value.reason


def changed(**parts):
    return replace(GOOD, methods=(replace(STEP, **parts),))


def only(*nodes, symbols=(), inputs=(X,)):
    return program(method(*nodes, inputs=inputs), symbols=symbols)


def test_a_good_program_passes():
    verify(GOOD)


def test_a_node_found_well_formed_may_still_stand_in_the_wrong_place():
    known = VerifiedNodes()
    verify(GOOD, known)
    assert NEG in known
    with pytest.raises(Malformed, match="used before it is defined"):
        verify(changed(inputs=(), outputs=()), known)


def test_a_node_like_one_found_well_formed_is_another():
    known = VerifiedNodes()
    verify(GOOD, known)
    wrong = node("aten::neg", X, to=value(1, 2, 5))
    with pytest.raises(Malformed, match="its rule gives"):
        verify(changed(nodes=(wrong, STEP.nodes[1]), outputs=()), known)


def test_other_sizes_are_tried_at_nodes_found_well_formed():
    known = VerifiedNodes()
    cat = node("aten::add.Tensor", value(0, SEQ), value(0, SEQ), 1, to=value(1, 1))
    inputs = (value(0, SEQ),)
    verify(only(cat, symbols=(Symbol("seq", 1, 1),), inputs=inputs), known)
    with pytest.raises(Malformed, match="its rule gives"):
        verify(only(cat, symbols=SYMBOLS, inputs=inputs), known)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"constants": CONSTANTS * 2}, "constants named twice: ['w']"),
        ({"states": GOOD.states * 2}, "states named twice: ['k']"),
        ({"methods": (STEP, STEP)}, "methods named twice: ['step']"),
    ],
)
def test_a_name_used_twice_is_refused(part, reason):
    assert refusal(replace(GOOD, **part)) == reason


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"inputs": (X, X)}, "%0 is defined twice"),
        ({"constants": ((X, "w"),)}, "%0 is defined twice"),
        ({"constants": ((W, "other"),)}, "%2 is not the type of other"),
        ({"constants": ((value(2, 8), "w"),)}, "%2 is not the type of w"),
        ({"state_in": ((value(3, 8), "k"),)}, "%3 is not the type of k"),
        ({"state_out": ((Y, "k"),)}, "%1 cannot become k"),
        ({"state_out": ((NEW, "other"),)}, "%4 cannot become other"),
        ({"outputs": (value(9, 2),)}, "%9 is used before it is defined"),
        ({"outputs": (value(1, 4, 2),)}, "%1 is used before it is defined"),
        ({"nodes": STEP.nodes[1:]}, "%1 is used before it is defined"),
        ({"nodes": (*STEP.nodes, NEG)}, "%1 is defined twice"),
    ],
)
def test_a_method_that_breaks_ssa_or_types_is_refused(parts, reason):
    assert refusal(changed(**parts)) == reason


def test_nodes_out_of_order_are_refused():
    late = node("aten::exp", Y, to=value(5, 2, 4))
    assert refusal(only(late, NEG)) == "%1 is used before it is defined"


def test_an_unknown_op_is_refused():
    bad = node("aten::none_such", X, to=Y)
    assert refusal(only(bad)) == "unknown op aten::none_such"


def test_a_missing_argument_is_refused():
    bad = node("aten::add.Tensor", X, X, to=Y)
    assert refusal(only(bad)) == "wrong number of arguments"


@pytest.mark.parametrize(
    ("op", "arguments", "reason"),
    [
        ("aten::add.Tensor", (1, X, 1), "self must be Tensor, not 1"),
        ("aten::add.Scalar", (X, X, 1), "other must be Scalar, not %0"),
        ("aten::cat", (X, 0), "tensors must be a list"),
        ("aten::softmax.int", (X, (1,)), "dim must not be a list"),
        ("aten::softmax.int", (X, True), "dim must be int, not True"),
        ("aten::softmax.int", (X, None), "dim must be int, not None"),
        ("aten::index.Tensor", (X, (None, 1)), "indices must be Tensor, not 1"),
        ("aten::gelu", (X, 1), "approximate must be str, not 1"),
        ("aten::amax", (X, (1,), 1), "keepdim must be bool, not 1"),
        ("aten::_to_copy", (X, 1), "dtype must be dtype, not 1"),
        ("aten::rms_norm", (X, (4,), None, "x"), "eps must be float, not 'x'"),
    ],
)
def test_an_argument_of_another_kind_is_refused(op, arguments, reason):
    assert refusal(only(node(op, *arguments, to=Y))) == reason


def test_a_shape_that_the_op_does_not_give_is_refused():
    bad = node("aten::neg", X, to=value(1, 4, 2))
    text = "declares float32[4, 2], its rule gives [2, 4]"
    assert refusal(only(bad)) == text


def test_a_dtype_that_the_op_does_not_give_is_refused():
    bad = node("aten::argmax", X, 1, False, to=value(1, 2))
    assert refusal(only(bad)).startswith("declares ")


def test_arguments_that_do_not_fit_are_refused_in_the_ops_words():
    bad = node("aten::mm", X, X, to=Y)
    assert "mm" in refusal(only(bad)) or "2, 4" in refusal(only(bad))


def test_too_many_results_are_refused():
    bad = node("aten::neg", X, to=(Y, value(5, 2, 4)))
    assert refusal(only(bad)).startswith("declares ")


def test_shapes_are_checked_at_more_than_one_size():
    x = value(0, SEQ)
    bad = node("aten::slice.Tensor", x, 0, 0, 4, 1, to=value(1, 4))
    with pytest.raises(Malformed) as caught:
        verify(only(bad, symbols=SYMBOLS, inputs=(x,)))
    assert caught.value.sizes == {"seq": 1}
    assert (caught.value.method, caught.value.node) == ("step", bad)


def test_sizes_to_try_are_the_ends_and_some_between():
    symbols = (Symbol("a", 1, 100), Symbol("b", 2, 6))
    assert list(sample_sizes(symbols)) == [
        {"a": 1, "b": 2},
        {"a": 100, "b": 6},
        {"a": 4, "b": 6},
        {"a": 8, "b": 6},
    ]


def test_without_symbols_one_try_is_enough():
    assert list(sample_sizes(())) == [{}]
