"""Views, joins and copies run by XNNPACK, against the kernels of torch."""

import pytest
from partition_sketch import SEQ, Sketch
from xnnpack_graphs import compare, noise

from kvc.schema.types import Affine

A, B = Affine(0, (("a", 1),)), Affine(0, (("b", 1),))
LAST = Affine(-1, (("seq", 1),))


def around(sketch, x, op, *arguments):
    """Return an op's result, with ops on both sides that compute."""
    made = sketch(op, sketch("aten::tanh", x), *arguments)
    many = made if isinstance(made, tuple) else (made,)
    return tuple(sketch("aten::neg", each) for each in many)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, SEQ, 12), (1, SEQ, 3, 4)),
        ((1, SEQ, 3, 4), (1, SEQ, 12)),
        ((2, SEQ, 6), (Affine(0, (("seq", 2),)), 6)),
        ((2, SEQ, 6), (2, Affine(0, (("seq", 6),)))),
        ((4, 6), (2, 3, 4)),
        ((1, 1), ()),
        ((), (1, 1)),
        ((2, SEQ, 1, 1, 1, 3), (6, SEQ)),
    ],
)
def test_a_view_with_one_size_to_work_out_is_one_reshape(before, after):
    sketch = Sketch()
    outputs = around(sketch, sketch.input(*before), "aten::view", after)
    native = compare(sketch, *outputs)
    assert native.functions.count("static_reshape") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((A, B, 12), (A, B, 3, 4)),
        ((A, B, 3, 4), (A, B, 12)),
        ((A, B, 3), (A, 1, B, 3)),
        ((A, 1, B, 3), (A, B, 3)),
        ((A, B, 1), (A, B)),
        ((1, A, B), (A, B)),
        ((A, B), (1, A, B)),
        ((A, B), (A, B, 1)),
        ((A, 12, B), (A, 3, 4, 1, B)),
        ((A, 3, 2, B, 5, 2), (A, 6, B, 10)),
    ],
)
def test_views_with_two_symbols_follow_both(before, after):
    sketch = Sketch(a=(1, 64), b=(1, 64))
    outputs = around(sketch, sketch.input(*before), "aten::view", after)
    compare(sketch, *outputs, lengths=(1, 5, 33, 2))


def test_a_chain_of_views_is_one_reshape():
    sketch = Sketch()
    x = sketch("aten::tanh", sketch.input(1, SEQ, 12))
    x = sketch("aten::view", x, (SEQ, 3, 4))
    x = sketch("aten::unsqueeze", x, 0)
    x = sketch("aten::unsqueeze", x, -1)
    x = sketch("aten::squeeze.dims", x, (0, 4))
    native = compare(sketch, sketch("aten::neg", x))
    assert native.functions == ["unary", "static_reshape", "unary"]


def test_views_there_and_back_are_no_node():
    sketch = Sketch()
    x = sketch("aten::tanh", sketch.input(1, SEQ, 12))
    x = sketch("aten::view", sketch("aten::view", x, (SEQ, 3, 4)), (1, SEQ, 12))
    native = compare(sketch, sketch("aten::neg", x))
    assert native.functions == ["unary", "unary"]


@pytest.mark.parametrize(
    ("dims", "order"),
    [
        ((SEQ, 4), (1, 0)),
        ((2, SEQ, 3, 4), (0, 2, 1, 3)),
        ((2, SEQ, 3, 4), (3, -2, 0, 1)),
        ((2, SEQ, 2, 3, 1, 2), (5, 4, 3, 2, 1, 0)),
    ],
)
def test_permutations_are_torchs(dims, order):
    sketch = Sketch()
    outputs = around(sketch, sketch.input(*dims), "aten::permute", order)
    native = compare(sketch, *outputs)
    assert native.functions.count("static_transpose") == 1


def test_a_transpose_of_axes_of_one_is_a_reshape():
    sketch = Sketch()
    x = sketch.input(1, 9, 1, 64)
    native = compare(sketch, *around(sketch, x, "aten::transpose.int", 1, 2))
    assert "static_transpose" not in native.functions


def test_transposes_there_and_back_are_no_node():
    sketch = Sketch()
    x = sketch("aten::transpose.int", sketch("aten::tanh", sketch.input(SEQ, 3)), 0, 1)
    x = sketch("aten::transpose.int", x, -1, -2)
    native = compare(sketch, sketch("aten::neg", x))
    assert native.functions == ["unary", "unary"]


@pytest.mark.parametrize(
    ("axis", "start", "end"),
    [
        (1, 1, 3),
        (1, -2, None),
        (1, None, -1),
        (-1, 2, 100),
        (1, 0, 9223372036854775807),
        (1, -100, 2),
        (0, 1, None),
        (0, -2, None),
        (0, 0, 2),
        (0, 1, -1),
        (0, LAST, None),
        (0, Affine(-3, (("seq", 1),)), LAST),
    ],
)
def test_slices_count_from_either_end(axis, start, end):
    sketch = Sketch(seq=(3, 64))
    x = sketch.input(SEQ, 4, 5)
    outputs = around(sketch, x, "aten::slice.Tensor", axis, start, end, 1)
    compare(sketch, *outputs, lengths=(3, 64, 5))


@pytest.mark.parametrize(
    ("axis", "index"), [(0, 0), (0, -1), (0, LAST), (-1, 2), (1, -2), (1, 1)]
)
def test_one_slice_is_selected(axis, index):
    sketch = Sketch()
    x = sketch.input(SEQ, 4, 5)
    compare(sketch, *around(sketch, x, "aten::select.int", axis, index))


@pytest.mark.parametrize(
    ("sizes", "nodes"),
    [
        ((2, 4), ["static_slice_v3"] * 2),
        ((3, 3), ["even_split"]),
        ((2, 2, 2), ["even_split"]),
        ((1,) * 6, ["static_slice_v3"] * 6),
        ((6,), []),
    ],
)
def test_equal_parts_are_one_split_and_others_are_slices(sizes, nodes):
    sketch = Sketch()
    x = sketch.input(2, SEQ, 6)
    outputs = around(sketch, x, "aten::split_with_sizes", sizes, -1)
    native = compare(sketch, *outputs)
    moved = [name for name in native.functions if name != "unary"]
    assert moved == nodes


def test_one_part_of_a_split_may_be_all_that_is_read():
    sketch = Sketch()
    parts = sketch("aten::split_with_sizes", sketch.input(SEQ, 6), (3, 3), 1)
    compare(sketch, sketch("aten::neg", parts[1]))


def test_a_symbolic_axis_is_split():
    sketch = Sketch(seq=(3, 64))
    rest = Affine(-2, (("seq", 1),))
    x = sketch.input(SEQ, 2)
    outputs = around(sketch, x, "aten::split_with_sizes", (2, rest), 0)
    compare(sketch, *outputs, lengths=(3, 64, 4))


@pytest.mark.parametrize("count", [1, 2, 5, 6, 12])
@pytest.mark.parametrize("axis", [0, -1])
def test_many_tensors_are_joined(count, axis):
    sketch = Sketch()
    dims = [(SEQ, 3) if axis == 0 else (SEQ, i + 1) for i in range(count)]
    joined = sketch("aten::cat", tuple(sketch.input(*d) for d in dims), axis)
    compare(sketch, sketch("aten::neg", joined))


def test_a_tensor_is_joined_to_itself():
    sketch = Sketch()
    x = sketch.input(SEQ, 3)
    compare(sketch, sketch("aten::cat", (x, x, x), 1))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_tensors_are_stacked(axis):
    sketch = Sketch()
    parts = (sketch.input(SEQ, 3), sketch.input(SEQ, 3))
    compare(sketch, sketch("aten::stack", parts, axis))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((SEQ, 1, 3), (SEQ, 4, 3)),
        ((SEQ, 3), (2, SEQ, 3)),
        ((SEQ, 1), (-1, 3)),
        ((1,), (5,)),
        ((SEQ, 3), (1, SEQ, 3)),
    ],
)
def test_axes_of_one_are_repeated(before, after):
    sketch = Sketch()
    compare(sketch, *around(sketch, sketch.input(*before), "aten::expand", after))


@pytest.mark.parametrize("widths", [(1, 2), (0, 0, 3, 1), (1, 0, 0, 2, 4, 0)])
@pytest.mark.parametrize("value", [0, 0.5, float("-inf"), float("nan")])
def test_padding_goes_around(widths, value):
    sketch = Sketch()
    compare(
        sketch, sketch("aten::constant_pad_nd", sketch.input(2, SEQ, 3), widths, value)
    )


def test_a_view_of_a_constant_is_no_node():
    sketch = Sketch()
    table = sketch("aten::view", sketch.constant(noise(6)), (2, 3))
    native = compare(
        sketch, sketch("aten::add.Tensor", sketch.input(SEQ, 2, 3), table, 1)
    )
    assert native.functions == ["binary"]
