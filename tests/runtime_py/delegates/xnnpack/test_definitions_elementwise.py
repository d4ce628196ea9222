"""Elementwise ops run by XNNPACK, against the kernels of torch."""

import numpy as np
import pytest
from partition_sketch import SEQ, Sketch
from xnnpack_graphs import Native, compare, noise, run_reference

from kvc.runtime.delegates.xnnpack import translation
from kvc.runtime.delegates.xnnpack.functions import Binary

INF, NAN = np.inf, np.nan
SPECIAL = np.array([NAN, INF, -INF, 0, 1, -1, 2.5, -2.5, 5, -104, 1e30], np.float32)
# What processors differ in: the library's sigmoid may be NaN, torch's gelu too.
UNSTEADY = {"sigmoid": [1e30], "silu": [1e30], "gelu": [INF]}


@pytest.mark.parametrize("dims", [(), (SEQ,), (3, SEQ), (SEQ, 7), (2, SEQ, 3, 5)])
@pytest.mark.parametrize(
    "op",
    [
        *("abs", "ceil", "floor", "neg", "relu", "round", "trunc"),
        *("exp", "tanh", "sigmoid"),
    ],
)
def test_ops_of_one_tensor_are_torchs(op, dims):
    sketch = Sketch()
    compare(sketch, sketch(f"aten::{op}", sketch.input(*dims)))


@pytest.mark.parametrize("op", ["log", "sqrt", "rsqrt", "reciprocal"])
def test_ops_of_positive_numbers_are_torchs(op):
    sketch = Sketch()
    compare(sketch, sketch(f"aten::{op}", sketch.input(SEQ, 33)), transform=np.abs)


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("silu", ()),
        ("gelu", ("none",)),
        ("gelu", ("tanh",)),
        ("clamp", (-0.5, 0.25)),
        ("clamp", (None, 0.25)),
        ("clamp", (0, None)),
        ("hardtanh", (0, 6)),
        ("leaky_relu", (0.01,)),
        ("leaky_relu", (0,)),
        ("elu", (1.5, 1, 1)),
        ("pow.Tensor_Scalar", (2,)),
        ("pow.Tensor_Scalar", (3,)),
        ("pow.Tensor_Scalar", (-1,)),
    ],
)
def test_activations_and_powers_are_torchs(op, arguments):
    sketch = Sketch()
    compare(sketch, sketch(f"aten::{op}", sketch.input(SEQ, 33), *arguments))


@pytest.mark.parametrize("bounds", [(True, True), (True, False), (False, True)])
def test_tensors_bound_as_torchs(bounds):
    sketch = Sketch()
    x, width = sketch.input(SEQ, len(SPECIAL)), len(SPECIAL)
    ends = [sketch.input(SEQ, width) if there else None for there in bounds]
    y = sketch("aten::clamp.Tensor", x, *ends)
    given = np.meshgrid(SPECIAL, SPECIAL, SPECIAL)
    rows = [each.reshape(-1, width) for each in given][: 1 + sum(bounds)]
    _check_special(sketch, y, *[each[:64] for each in rows])


@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_as_powers_are_torchs(exponent):
    sketch = Sketch()
    root = sketch("aten::pow.Tensor_Scalar", sketch.input(SEQ, 9), exponent)
    compare(sketch, root, transform=np.abs)


PAIRS = [
    ((SEQ, 9), (SEQ, 9)),
    ((2, SEQ, 9), (SEQ, 1)),
    ((SEQ, 1), (2, 1, 9)),
    ((SEQ,), ()),
    ((2, SEQ, 1, 3), (1, SEQ, 4, 1)),
]


@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("op", ["mul.Tensor", "div.Tensor", "maximum", "minimum"])
def test_ops_of_two_tensors_broadcast(op, left, right):
    sketch = Sketch()
    compare(sketch, sketch(f"aten::{op}", sketch.input(*left), sketch.input(*right)))


@pytest.mark.parametrize("alpha", [1, -2.5])
@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("op", ["add", "sub"])
def test_sums_take_a_factor(op, left, right, alpha):
    sketch = Sketch()
    x, y = sketch.input(*left), sketch.input(*right)
    compare(sketch, sketch(f"aten::{op}.Tensor", x, y, alpha))


@pytest.mark.parametrize(
    ("op", "numbers"),
    [
        ("add.Scalar", (0.1, 3)),
        ("sub.Scalar", (0.1, 1)),
        ("rsub.Scalar", (1, 2)),
        ("rsub.Scalar", (1, 1)),
        ("mul.Scalar", (0.3,)),
        ("div.Scalar", (0.3,)),
    ],
)
def test_numbers_stand_for_tensors(op, numbers):
    sketch = Sketch()
    compare(sketch, sketch(f"aten::{op}", sketch.input(2, SEQ, 9), *numbers))


def test_a_constant_is_read_where_it_lies_on_either_side():
    sketch = Sketch()
    x, scale = sketch.input(SEQ, 9), sketch.constant(noise(9))
    product = sketch("aten::mul.Tensor", scale, x)
    compare(sketch, sketch("aten::sub.Tensor", product, scale, 1))


def test_equal_numbers_are_one_value():
    sketch = Sketch()
    x = sketch.input(SEQ)
    y = sketch("aten::mul.Scalar", sketch("aten::mul.Scalar", x, 0.5), 0.5)
    native = compare(sketch, y)
    first, second = native.subgraph.translated.nodes
    assert list(first.inputs)[1] is list(second.inputs)[1]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        *[(op, ()) for op in ("abs", "ceil", "exp", "floor", "neg", "relu")],
        *[(op, ()) for op in ("reciprocal", "round", "sigmoid", "silu", "tanh")],
        ("trunc", ()),
        ("clamp", (-2, 2)),
        ("clamp", (-2, None)),
        ("elu", (1.5, 1, 1)),
        ("gelu", ("none",)),
        ("gelu", ("tanh",)),
        ("leaky_relu", (0.01,)),
        ("pow.Tensor_Scalar", (2,)),
        ("mul.Scalar", (2.0,)),
        ("div.Scalar", (0.0,)),
    ],
)
def test_nan_and_infinities_come_out_as_in_torch(op, arguments):
    sketch = Sketch()
    y = sketch(f"aten::{op}", sketch.input(SEQ), *arguments)
    unsteady = np.float32(UNSTEADY.get(op, []))
    _check_special(sketch, y, SPECIAL[~np.isin(SPECIAL, unsteady)])


@pytest.mark.parametrize("op", ["maximum", "minimum", "mul.Tensor", "div.Tensor"])
def test_nan_and_infinities_of_either_operand_come_out_as_in_torch(op):
    sketch = Sketch()
    width = len(SPECIAL)
    y = sketch(f"aten::{op}", sketch.input(SEQ, width), sketch.input(SEQ, width))
    _check_special(sketch, y, *np.meshgrid(SPECIAL, SPECIAL))


@pytest.mark.parametrize("first", [True, False])
def test_a_maximum_with_a_constant_keeps_nan(first):
    sketch = Sketch()
    x, one = sketch.input(SEQ), sketch.constant(np.ones(1, np.float32))
    y = sketch("aten::maximum", *((one, x) if first else (x, one)))
    _check_special(sketch, y, SPECIAL)


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize("first", [True, False])
def test_a_bound_by_a_weight_that_holds_nan_is_nan_there(op, first):
    sketch, weight = Sketch(), np.float32([1, np.nan, -np.inf, np.nan, 0])
    x, held = sketch.input(SEQ, 5), sketch.constant(weight)
    y = sketch(f"aten::{op}", *((held, x) if first else (x, held)))
    _check_special(sketch, y, np.float32([[0, 0, 0, np.inf, np.nan], [2] * 5]))


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("sqrt", ()),
        ("rsqrt", ()),
        ("pow.Tensor_Scalar", (0.5,)),
        ("pow.Tensor_Scalar", (-0.5,)),
    ],
)
def test_roots_at_their_ends_are_torchs(op, arguments):
    sketch = Sketch()
    y = sketch(f"aten::{op}", sketch.input(SEQ), *arguments)
    _check_special(sketch, y, np.array([INF, 0, -0.0, -1, NAN, -INF, 8e37], np.float32))


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("maximum", (-1.0,)),
        ("minimum", (1.0,)),
        ("amax", ([-1], True)),
        ("trunc", ()),
        ("sqrt", ()),
        ("abs", ()),
    ],
)
def test_zeros_have_the_sign_that_they_have_in_torch(op, arguments):
    sketch = Sketch()
    x = sketch.input(SEQ, 1)
    if op in ("maximum", "minimum"):
        arguments = [sketch.constant(np.float32([each])) for each in arguments]
    y = sketch("aten::reciprocal", sketch(f"aten::{op}", x, *arguments))
    _check_special(sketch, y, np.float32([[0.0], [-0.0], [-0.4 * (op == "trunc")]]))


def test_logarithms_at_their_ends_are_what_is_stated():
    sketch = Sketch()
    native = Native(sketch, sketch("aten::log", sketch.input(4)))
    (made,) = native(np.array([INF, 0, -1, NAN], np.float32), seq=1)
    assert made[0] > 88  # 88.4 or infinite, by the processor
    assert np.array_equal(made[1:], [-INF, NAN, NAN], equal_nan=True)
    native.close()


@pytest.mark.parametrize(
    ("lowest", "highest", "rtol"), [(-5, 5, 5e-7), (-80, 88.3, 5e-6)]
)
def test_exponentials_are_as_close_as_is_stated(lowest, highest, rtol):
    sketch = Sketch()
    x = np.linspace(lowest, highest, 64, dtype=np.float32)
    native = Native(sketch, sketch("aten::exp", sketch.input(SEQ)))
    (found,) = native(x, seq=64)
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol)
    native.close()


def test_subnormal_numbers_count_as_zero():
    sketch = Sketch()
    x = sketch.input(2)
    native = Native(sketch, sketch("aten::mul.Scalar", x, 2.0**100))
    (made,) = native(np.array([1e-40, 2e-38], np.float32), seq=1)
    assert made[0] == 0
    assert made[1] > 0
    native.close()


@pytest.mark.parametrize("op", [Binary.MAXIMUM, Binary.MINIMUM])
def test_the_library_does_not_rewrite_what_it_takes_for_zero(monkeypatch, op):
    def define(b, dims, x, other):
        return b.binary(op, b.binary(Binary.MULTIPLY, x, b.scalar(0)), other)

    monkeypatch.setitem(translation.DEFINITIONS, "aten::maximum", define)
    sketch = Sketch()
    y = sketch("aten::maximum", sketch.input(SEQ, 3), sketch.input(1, 3))
    native = Native(sketch, y)
    x, other = np.ones((5, 3), np.float32), noise(1, 3)
    bound = np.maximum if op is Binary.MAXIMUM else np.minimum
    assert np.array_equal(native(x, other, seq=5)[0], bound(x * 0, other))
    native.close()


def _check_special(sketch, output, *inputs):
    native = Native(sketch, output)
    sizes = {"seq": len(inputs[0])}
    given = [np.ascontiguousarray(x) for x in inputs]
    (found,) = native(*given, **sizes)
    with np.errstate(all="ignore"):
        (expected,) = run_reference(sketch, [output], given, sizes)
    np.testing.assert_allclose(found, expected, 1e-6, 1e-6)
    native.close()
