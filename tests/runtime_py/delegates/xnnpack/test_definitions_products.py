"""Linears, products and convolutions run by XNNPACK, against the kernels of torch.

Sums of products are taken in another order than torch's: results differ by some 1e-6
of the size of what is summed.
"""

import ml_dtypes
import numpy as np
import pytest
from partition_sketch import SEQ, Sketch
from xnnpack_graphs import Native, compare, noise

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def constant(sketch, *shape):
    return sketch.constant(noise(*shape, seed=9))


def quantized(sketch, x, out, bias=True):
    """Return an int8 linear over rows of x."""
    columns = sketch.dims(x)[-1]
    generator = np.random.default_rng(3)
    weight = generator.integers(-127, 128, (out, columns), dtype=np.int8)
    scale = np.abs(noise(out)) * np.float32(0.01) + np.float32(1e-4)
    added = constant(sketch, out) if bias else None
    rows = sketch("kvc::quantize_rows", x)
    return sketch(
        *("kvc::linear_qd8", *rows),
        *(sketch.constant(weight), sketch.constant(scale), added),
    )


@pytest.mark.parametrize("lead", [(), (SEQ,), (1, SEQ), (2, SEQ, 3)])
@pytest.mark.parametrize(("columns", "out"), [(64, 48), (67, 33), (1, 1), (576, 192)])
@pytest.mark.parametrize("bias", [True, False])
def test_int8_linears_are_the_references(lead, columns, out, bias):
    sketch = Sketch()
    y = quantized(sketch, sketch.input(*lead, columns), out, bias)
    native = compare(sketch, y, **CLOSE)
    assert native.functions == ["convert", "fully_connected"]


def test_linears_that_share_rows_quantize_them_once():
    sketch = Sketch()
    rows = sketch("kvc::quantize_rows", sketch.input(SEQ, 32))
    outputs = []
    for out in (8, 24):
        weight = np.full((out, 32), 3, np.int8)
        weight[:, ::2] = -out
        scale = sketch.constant(np.full(out, 0.01, np.float32))
        outputs.append(
            sketch("kvc::linear_qd8", *rows, sketch.constant(weight), scale, None)
        )
    native = compare(sketch, *outputs, **CLOSE)
    assert native.functions == ["convert", "fully_connected", "fully_connected"]


@pytest.mark.parametrize(
    ("columns", "out", "block"), [(64, 24, 32), (128, 40, 64), (96, 8, 32)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_int4_linears_are_the_references(columns, out, block, bias):
    sketch = Sketch()
    generator = np.random.default_rng(1)
    groups = (out // 8, columns // 8, 8, 4)
    weight = generator.integers(0, 256, groups, dtype=np.uint8)
    scale = np.abs(noise(out // 8, columns // block, 8)) * 0.01 + 1e-3
    rows = sketch("kvc::quantize_rows", sketch.input(1, SEQ, columns))
    y = sketch(
        *("kvc::linear_qb4", *rows, sketch.constant(weight)),
        sketch.constant(scale.astype(ml_dtypes.bfloat16)),
        constant(sketch, out) if bias else None,
    )
    compare(sketch, y, **CLOSE)


def test_a_row_that_is_not_finite_leaves_the_others_alone():
    sketch = Sketch()
    native = Native(sketch, quantized(sketch, sketch.input(SEQ, 64), 8))
    x = noise(6, 64)
    (clean,) = native(x, seq=6)
    x[1, 5], x[2, 5], x[4, :] = np.nan, np.inf, -np.inf
    (found,) = native(x, seq=6)
    assert np.array_equal(found[[0, 3, 5]], clean[[0, 3, 5]])
    assert not np.array_equal(found[4], clean[4])
    native.close()


@pytest.mark.parametrize("lead", [(), (SEQ,), (2, SEQ), (2, 1, SEQ)])
@pytest.mark.parametrize("bias", [True, False])
def test_float_linears_are_torchs(lead, bias):
    sketch = Sketch()
    added = constant(sketch, 17) if bias else None
    x, weight = sketch.input(*lead, 33), constant(sketch, 17, 33)
    compare(sketch, sketch("aten::linear", x, weight, added), **CLOSE)


@pytest.mark.parametrize(
    ("op", "left", "right"),
    [
        ("mm", (SEQ, 33), (33, 17)),
        ("mm", (3, SEQ), (SEQ, 17)),
        ("bmm", (3, SEQ, 33), (3, 33, 17)),
        ("matmul", (2, 3, SEQ, 8), (2, 3, 8, SEQ)),
        ("matmul", (2, 3, SEQ, 8), (3, 8, 5)),
        ("matmul", (2, 3, SEQ, 8), (8, 5)),
        ("matmul", (SEQ, 8), (3, 8, 5)),
        ("matmul", (2, 1, 2, 3, SEQ, 2), (2, 2, 2, 1, 2, 3)),
    ],
)
def test_products_of_computed_matrices_broadcast(op, left, right):
    sketch = Sketch()
    y = sketch(f"aten::{op}", sketch.input(*left), sketch.input(*right))
    native = compare(sketch, y, **CLOSE)
    assert native.functions == ["batch_matrix_multiply"]


@pytest.mark.parametrize(
    ("op", "left", "right", "function"),
    [
        ("mm", (SEQ, 33), (33, 17), "fully_connected"),
        ("matmul", (2, 3, SEQ, 8), (8, 5), "fully_connected"),
        ("bmm", (3, SEQ, 33), (3, 33, 17), "batch_matrix_multiply"),
    ],
)
@pytest.mark.parametrize("turned", [True, False])
def test_a_constant_on_the_right_is_packed(op, left, right, function, turned):
    sketch = Sketch()
    if turned:
        stored = constant(sketch, *right[:-2], right[-1], right[-2])
        weight = sketch("aten::transpose.int", stored, -1, -2)
    else:
        weight = constant(sketch, *right)
    native = compare(
        sketch, sketch(f"aten::{op}", sketch.input(*left), weight), **CLOSE
    )
    assert native.functions == [function]


def test_a_constant_on_the_left_is_read_where_it_lies():
    sketch = Sketch()
    y = sketch("aten::mm", constant(sketch, 7, 33), sketch.input(33, SEQ))
    compare(sketch, y, **CLOSE)


def test_a_transposed_right_hand_side_is_not_copied():
    sketch = Sketch()
    turned = sketch("aten::transpose.int", sketch.input(1, 3, SEQ, 8), 2, 3)
    scores = sketch("aten::matmul", sketch.input(1, 3, SEQ, 8), turned)
    native = compare(sketch, scores, **CLOSE)
    assert native.functions == ["batch_matrix_multiply"]


@pytest.mark.parametrize(
    ("added", "functions"),
    [
        ("row", ["fully_connected"]),
        ("matrix", ["fully_connected", "binary"]),
        ("computed", ["fully_connected", "binary"]),
    ],
)
def test_addmm_adds_a_constant_row_as_a_bias(added, functions):
    sketch = Sketch()
    first = {
        "row": lambda: constant(sketch, 17),
        "matrix": lambda: constant(sketch, 1, 17),
        "computed": lambda: sketch.input(SEQ, 17),
    }[added]()
    x, weight = sketch.input(SEQ, 33), constant(sketch, 33, 17)
    native = compare(sketch, sketch("aten::addmm", first, x, weight, 1, 1), **CLOSE)
    assert native.functions == functions


@pytest.mark.parametrize(
    ("channels", "out", "groups"),
    [(6, 8, 1), (1, 4, 1), (1, 1, 1), (6, 6, 6), (6, 12, 6), (6, 8, 2)],
)
@pytest.mark.parametrize(
    ("kernel", "padding", "dilation"), [(3, 1, 1), (4, 3, 1), (3, 2, 2)]
)
def test_convolutions_along_one_axis_are_torchs(
    channels, out, groups, kernel, padding, dilation
):
    sketch = Sketch()
    weight = constant(sketch, out, channels // groups, kernel)
    y = sketch(
        *("aten::convolution", sketch.input(2, channels, SEQ), weight),
        *(constant(sketch, out), (1,), (padding,), (dilation,), groups),
    )
    native = compare(sketch, y, **CLOSE)
    alone = "depthwise_convolution_2d" in native.functions
    assert alone == (groups == channels > 1)


@pytest.mark.parametrize(
    ("stride", "padding", "added", "dilation"),
    [(1, 0, 0, 1), (2, 1, 1, 1), (3, 0, 0, 1), (2, 2, 0, 3), (4, 5, 3, 2)],
)
@pytest.mark.parametrize(("each", "groups"), [(8, 1), (3, 2), (1, 6), (2, 6)])
def test_transposed_convolutions_along_one_axis_are_torchs(
    stride, padding, added, dilation, each, groups
):
    sketch = Sketch()
    weight, bias = constant(sketch, 6, each, 7), constant(sketch, each * groups)
    y = sketch(
        *("aten::conv_transpose1d", sketch.input(2, 6, SEQ), weight, bias),
        *((stride,), (padding,), (added,), groups, (dilation,)),
    )
    native = compare(sketch, y, lengths=(2, 5, 64, 3), **CLOSE)
    assert "deconvolution_2d" in native.functions


@pytest.mark.parametrize(
    ("stride", "padding", "added", "dilation"),
    [
        ((1, 1), (0, 0), (0, 0), (1, 1)),
        ((2, 2), (0, 0), (0, 0), (1, 1)),
        ((2, 3), (1, 2), (1, 0), (1, 1)),
        ((3, 1), (2, 0), (0, 0), (1, 2)),
    ],
)
@pytest.mark.parametrize(("each", "groups"), [(8, 1), (3, 2), (1, 4)])
def test_transposed_convolutions_along_two_axes_are_torchs(
    stride, padding, added, dilation, each, groups
):
    sketch = Sketch()
    weight = constant(sketch, 4, each, 3, 5)
    y = sketch(
        *("aten::conv_transpose2d.input", sketch.input(2, 4, SEQ, 6), weight, None),
        *(stride, padding, added, groups, dilation),
    )
    compare(sketch, y, lengths=(2, 5, 16), **CLOSE)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation"),
    [((1, 1), (1, 2), (1, 1)), ((1, 2), (2, 0), (1, 1)), ((1, 1), (2, 1), (2, 1))],
)
@pytest.mark.parametrize(("out", "groups"), [(8, 1), (8, 2), (4, 4)])
def test_convolutions_along_two_axes_are_torchs(stride, padding, dilation, out, groups):
    sketch = Sketch()
    weight = constant(sketch, out, 4 // groups, 3, 5)
    y = sketch(
        *("aten::convolution", sketch.input(2, 4, SEQ, 12), weight),
        *(None, stride, padding, dilation, groups),
    )
    compare(sketch, y, lengths=(3, 5, 64), **CLOSE)
