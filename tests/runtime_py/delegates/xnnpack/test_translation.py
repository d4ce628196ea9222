"""What becomes of inputs, outputs and views; most of it needs no library."""

import pytest
from partition_sketch import SEQ, Sketch
from xnnpack_graphs import Native, compare, noise

from kvc.runtime.delegates.xnnpack.translation import DEFINITIONS, translate
from kvc.schema.backends.xnnpack import RULES


def functions_of(sketch, *outputs):
    nodes = translate(sketch.graph(*outputs), {"seq": 3}).nodes
    return [node.function for node in nodes]


def test_every_op_that_xnnpack_takes_is_defined_and_no_other():
    assert set(DEFINITIONS) == set(RULES)


def test_what_nobody_reads_is_not_defined():
    sketch = Sketch()
    x = sketch.input(SEQ)
    sketch("aten::tanh", x)
    assert functions_of(sketch, sketch("aten::neg", x)) == ["unary"]


def test_a_view_at_the_end_is_no_node():
    sketch = Sketch()
    y = sketch("aten::tanh", sketch.input(1, SEQ, 12))
    shaped = sketch("aten::view", y, (SEQ, 3, 4))
    assert functions_of(sketch, shaped) == ["unary"]
    compare(sketch, shaped)


def test_an_input_that_is_read_in_one_other_shape_comes_in_it():
    sketch = Sketch()
    shaped = sketch("aten::view", sketch.input(1, SEQ, 12), (SEQ, 3, 4))
    y = sketch("aten::neg", shaped)
    assert functions_of(sketch, y) == ["unary"]
    native = compare(sketch, y)
    assert native.subgraph.external_shapes({"seq": 5})[0] == (5, 3, 4)


def test_an_input_that_is_read_in_two_shapes_is_reshaped():
    sketch = Sketch()
    x = sketch.input(1, SEQ, 12)
    first = sketch("aten::neg", sketch("aten::view", x, (SEQ, 3, 4)))
    second = sketch("aten::neg", x)
    assert sorted(functions_of(sketch, first, second)) == [
        *("static_reshape", "unary", "unary")
    ]
    compare(sketch, first, second)


def test_outputs_that_are_no_value_of_their_own_are_copied():
    sketch = Sketch()
    x, table = sketch.input(SEQ, 3), sketch.constant(noise(4))
    y = sketch("aten::tanh", x)
    shaped = sketch("aten::view", y, (3, SEQ))
    last = sketch("aten::neg", y)
    native = compare(sketch, x, y, y, shaped, last, table)
    assert (
        native.functions.count("copy") + native.functions.count("static_reshape") == 4
    )


def test_an_input_may_be_an_output_in_another_shape():
    sketch = Sketch()
    x = sketch.input(1, SEQ, 12)
    compare(sketch, sketch("aten::view", x, (SEQ, 3, 4)), x)


@pytest.mark.parametrize("op", ["alias", "clone"])
def test_a_copy_of_an_input_is_one_node(op):
    sketch = Sketch()
    native = compare(sketch, sketch(f"aten::{op}", sketch.input(SEQ, 3)))
    assert native.functions == ["copy"]


def test_an_input_that_nobody_reads_may_be_there():
    sketch = Sketch()
    sketch.input(SEQ, 2)
    compare(sketch, sketch("aten::neg", sketch.input(SEQ, 3)))


def test_sizes_of_zero_pass_through():
    sketch = Sketch(seq=(0, 64))
    x = sketch("aten::rms_norm", sketch.input(1, SEQ, 12), (12,), None, 1e-5)
    x = sketch("aten::transpose.int", sketch("aten::view", x, (1, SEQ, 3, 4)), 1, 2)
    native = compare(sketch, sketch("aten::neg", x), lengths=(3, 0, 5))
    native = Native(sketch, sketch("aten::neg", x), seq=0)
    assert native(noise(1, 2, 12), seq=2)[0].shape == (1, 3, 2, 4)
    native.close()


def test_two_runtimes_of_one_partition_do_not_meet():
    sketch = Sketch()
    y = sketch("aten::mul.Scalar", sketch.input(SEQ, 3), 2.0)
    first, second = Native(sketch, y), Native(sketch, y)
    a, b = noise(5, 3), noise(2, 3, seed=1)
    (before,) = first(a, seq=5)
    (other,) = second(b, seq=2)
    assert (before == a * 2).all()
    assert (other == b * 2).all()
    first.close()
    second.close()
