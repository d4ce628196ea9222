"""Norms, softmax and reductions run by XNNPACK, against the kernels of torch."""

import numpy as np
import pytest
from partition_sketch import SEQ, Sketch
from xnnpack_graphs import Native, compare, noise, run_reference

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("lead", "shape"),
    [((), (33,)), ((SEQ,), (33,)), ((1, SEQ), (576,)), ((2, SEQ), (3, 5))],
)
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("eps", [1e-5, None])
def test_rms_norm_is_torchs(lead, shape, weighted, eps):
    sketch = Sketch()
    weight = sketch.constant(noise(*shape)) if weighted else None
    x = sketch.input(*lead, *shape)
    compare(sketch, sketch("aten::rms_norm", x, shape, weight, eps), rtol=2e-6)


@pytest.mark.parametrize(
    ("lead", "shape"), [((SEQ,), (33,)), ((1, SEQ), (576,)), ((2, SEQ), (3, 5))]
)
@pytest.mark.parametrize("weighted", [True, False])
def test_layer_norm_is_torchs(lead, shape, weighted):
    sketch = Sketch()
    weight = sketch.constant(noise(*shape)) if weighted else None
    bias = sketch.constant(noise(*shape, seed=1)) if weighted else None
    x = sketch.input(*lead, *shape)
    y = sketch("aten::layer_norm", x, shape, weight, bias, 1e-5)
    # The variance is a mean over differences; torch takes it in one pass.
    compare(sketch, y, rtol=1e-5, atol=2e-6)


def test_rms_norm_is_five_nodes():
    sketch = Sketch()
    weight = sketch.constant(noise(8))
    y = sketch("aten::rms_norm", sketch.input(SEQ, 8), (8,), weight, 1e-5)
    native = compare(sketch, y)
    assert native.functions == [
        *("static_reduce_v2", "binary", "unary", "binary", "binary")
    ]


@pytest.mark.parametrize(
    "dims", [(SEQ,), (SEQ, 65), (2, SEQ), (2, 3, SEQ, 7), (1, SEQ, SEQ)]
)
def test_softmax_is_torchs(dims):
    sketch = Sketch()
    compare(sketch, sketch("aten::softmax.int", sketch.input(*dims), -1))
    named = Sketch()
    last = len(dims) - 1
    compare(named, named("aten::softmax.int", named.input(*dims), last))


AXES = [(0,), (1,), (-1,), (0, 2), (1, 2), (), (2, 0, 1)]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("op", ["sum.dim_IntList", "mean.dim", "amax", "amin"])
def test_reductions_are_torchs(op, axes, keep):
    sketch = Sketch()
    y = sketch(f"aten::{op}", sketch.input(3, SEQ, 5), axes, keep)
    compare(sketch, y, rtol=1e-5, atol=1e-5)  # sums of up to 960 in another order


def test_a_sum_of_all_is_a_scalar_that_others_read():
    sketch = Sketch()
    total = sketch("aten::sum.dim_IntList", sketch.input(3, SEQ), None, False)
    scaled = sketch("aten::mul.Tensor", total, sketch.input(SEQ))
    compare(sketch, scaled, total, atol=1e-5)


ROWS = np.tile(noise(9, 8), 1)
ROWS[0, 3] = NAN
ROWS[1, 3] = INF
ROWS[2, 3] = -INF
ROWS[3] = -INF
ROWS[4] = INF
ROWS[5] = NAN
ROWS[6] = 0
ROWS[7] = 1e30


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("softmax.int", (-1,)),
        ("rms_norm", ((8,), None, 1e-5)),
        ("sum.dim_IntList", ((1,), True)),
        ("mean.dim", ((1,), True)),
        ("amax", ((1,), True)),
        ("amin", ((1,), True)),
        ("amax", ((0,), False)),
    ],
)
def test_nan_and_infinities_spread_through_their_row_alone(op, arguments):
    sketch = Sketch()
    y = sketch(f"aten::{op}", sketch.input(SEQ, 8), *arguments)
    native = Native(sketch, y)
    (found,) = native(ROWS, seq=9)
    (expected,) = run_reference(sketch, [y], [ROWS], {"seq": 9})
    np.testing.assert_allclose(found, expected, 2e-6, 1e-6)
    assert np.isnan(found).any()
    native.close()
