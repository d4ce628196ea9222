"""What is refused before the library sees it: it would read and write beyond memory."""

from dataclasses import replace

import numpy as np
import pytest
from hand_built import write_bundle
from partition_sketch import SEQ, Sketch
from xnnpack_programs import numbers, partition_program

from kvc.runtime import load
from kvc.runtime.delegates.xnnpack.checks import check_ops
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Alias, Ref
from kvc.schema.ops import OPS
from kvc.schema.types import TensorType

SCALES = np.full(4, 0.01, np.float32)


def refused(match):
    return pytest.raises(BadProgram, match=match)


def check(sketch, *outputs):
    check_ops(sketch.graph(*outputs), "p.kvc")


def other_input(sketch, dtype, *dims):
    """Add an input that is not float32."""
    return sketch.input_of(TensorType(dtype, dims))


def linear(sketch, q, scale, zero_point):
    weight = sketch.constant(numbers((4, 8)))
    return sketch(
        "kvc::linear_qd8", q, scale, zero_point, weight, sketch.constant(SCALES), None
    )


@pytest.mark.parametrize(
    "dtype",
    [DType.INT8, DType.INT64, DType.BFLOAT16, DType.BOOL],
    ids=lambda dtype: dtype.label,
)
def test_an_input_that_is_not_float32_is_refused(dtype):
    sketch = Sketch()
    y = sketch("aten::relu", sketch.input(SEQ, 8))
    other_input(sketch, dtype, SEQ, 8)
    with refused(rf"p\.kvc: input 1: .*{dtype.label}\[seq, 8\] is not float32"):
        check(sketch, y)


def test_an_output_that_is_a_constant_of_another_dtype_is_refused():
    sketch = Sketch()
    y = sketch("aten::relu", sketch.input(SEQ, 8))
    constant = sketch.constant(np.ones((4, 4), np.int8))
    with refused(r"output 1: .*int8\[4, 4\] is not float32"):
        check(sketch, y, constant)


def test_an_operand_of_too_many_dims_is_refused_even_if_nobody_computes_with_it():
    sketch = Sketch()
    y = sketch("aten::relu", sketch.input(SEQ, 8))
    x = sketch.input(*[1] * 7)
    with refused("input 1: .*more than 6 dims"):
        check(sketch, y)
    with refused("input 1: .*more than 6 dims"):
        check(sketch, x)


def test_a_float32_constant_may_be_an_output():
    sketch = Sketch()
    check(sketch, sketch.constant(SCALES), sketch.input(SEQ, 8))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_quantized_rows_are_no_output(index):
    sketch = Sketch()
    rows = sketch("kvc::quantize_rows", sketch.input(SEQ, 8))
    y = linear(sketch, *rows)
    with refused("output 1: .*quantized rows"):
        check(sketch, y, rows[index])


@pytest.mark.parametrize("op", ["aten::mul.Scalar", "aten::view", "aten::cat"])
def test_the_scales_of_quantized_rows_are_read_by_no_other_op(op):
    """They are one value with the rows, int8 where this would read float32."""
    sketch = Sketch()
    _, scale, _ = sketch("kvc::quantize_rows", sketch.input(SEQ, 8))
    arguments = {
        "aten::mul.Scalar": (scale, 2.0),
        "aten::view": (scale, (SEQ,)),
        "aten::cat": ((sketch.input(SEQ, 1), scale), 1),
    }
    y = sketch(op, *arguments[op])
    with refused(rf"instruction 1: .*{op} reads quantized rows"):
        check(sketch, y)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_rows_of_two_quantizations_are_not_mixed(index):
    sketch = Sketch()
    one = list(sketch("kvc::quantize_rows", sketch.input(SEQ, 8)))
    two = sketch("kvc::quantize_rows", sketch.input(SEQ, 8))
    one[index] = two[index]
    with refused("instruction 2: .*linear_qd8 reads .* of one kvc::quantize_rows"):
        check(sketch, linear(sketch, *one))


def test_rows_that_are_made_outside_are_refused():
    sketch = Sketch()
    q = other_input(sketch, DType.INT8, SEQ, 8)
    zero_point = other_input(sketch, DType.INT32, SEQ, 1)
    y = linear(sketch, q, sketch.input(SEQ, 1), zero_point)
    with refused("instruction 0: .*linear_qd8 reads .* of one kvc::quantize_rows"):
        check(sketch, y)


def test_rows_that_are_constants_are_refused():
    sketch = Sketch()
    q = sketch.constant(numbers((3, 8)))
    scale = sketch.constant(np.ones((3, 1), np.float32))
    zero_point = sketch.constant(np.zeros((3, 1), np.int32))
    with refused("instruction 0: .*linear_qd8 reads .* of one kvc::quantize_rows"):
        check(sketch, linear(sketch, q, scale, zero_point))


def test_the_scales_of_rows_are_not_quantized_themselves():
    sketch = Sketch()
    _, scale, _ = sketch("kvc::quantize_rows", sketch.input(SEQ, 8))
    rows = sketch("kvc::quantize_rows", scale)
    weight = sketch.constant(numbers((4, 1)))
    y = sketch("kvc::linear_qd8", *rows, weight, sketch.constant(SCALES), None)
    with refused("instruction 1: .*quantize_rows reads quantized rows"):
        check(sketch, y)


def test_linears_may_share_rows():
    sketch = Sketch()
    rows = sketch("kvc::quantize_rows", sketch.input(SEQ, 8))
    check(sketch, linear(sketch, *rows), linear(sketch, *rows))


def over(graph, result, base):
    """Return the code with a result in the memory of another value."""
    values = list(graph.values)
    changed = replace(values[result.value], storage=Alias(base.value))
    values[result.value] = changed
    return replace(graph, values=tuple(values))


WRITES_WHAT_IT_READS = refused("input 0: .*cannot write over an input that it reads")


def test_a_result_over_an_input_that_makes_it_is_refused():
    sketch = Sketch()
    x = sketch.input(SEQ, 8)
    y = sketch("aten::exp", x)
    with WRITES_WHAT_IT_READS:
        check_ops(over(sketch.graph(y), y, x), "p.kvc")


def test_a_result_over_an_input_that_another_op_reads_is_refused():
    """Before or after: the library has an order of its own."""
    sketch = Sketch()
    home, x = sketch.input(SEQ, 8), sketch.input(SEQ, 8)
    z = sketch("aten::neg", home)
    y = sketch("aten::exp", x)
    with WRITES_WHAT_IT_READS:
        check_ops(over(sketch.graph(y, z), y, home), "p.kvc")


def test_a_result_over_an_input_that_is_read_through_views_is_refused():
    sketch = Sketch()
    home = sketch.input(SEQ, 8)
    view = sketch("aten::view", sketch("aten::view", home, (8, SEQ)), (SEQ, 8))
    y = sketch("aten::add.Tensor", sketch.input(SEQ, 8), view, 1)
    with WRITES_WHAT_IT_READS:
        check_ops(over(sketch.graph(y), y, home), "p.kvc")


def test_a_result_over_a_view_of_an_input_that_is_read_is_refused():
    sketch = Sketch()
    home, x = sketch.input(SEQ, 8), sketch.input(8, SEQ)
    view = sketch("aten::view", home, (8, SEQ))
    y = sketch("aten::exp", x)
    z = sketch("aten::neg", home)
    with WRITES_WHAT_IT_READS:
        check_ops(over(sketch.graph(y, z), y, view), "p.kvc")


def test_a_result_over_an_input_that_is_not_read_may_be_read_again():
    sketch = Sketch()
    home, x = sketch.input(SEQ, 8), sketch.input(SEQ, 8)
    y = sketch("aten::exp", x)
    z = sketch("aten::neg", y)
    check_ops(over(sketch.graph(y, z), y, home), "p.kvc")


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("kvc::cond", (Ref(0), 1, 2, (Ref(0),), (None,))),
        ("kvc::while", (1, 2, 1, (Ref(0),), (None,))),
        ("kvc::scan", (1, 0, 1, (Ref(0),), (None,))),
        ("kvc::delegate", (1, (Ref(0),), (None,))),
        ("kvc::cache_update", (Ref(0), Ref(0), None, 0, "linear", None, 0)),
        ("kvc::append", (Ref(0), Ref(0), 0)),
        ("aten::copy", (Ref(0), Ref(0))),
        ("aten::index_put", (Ref(0), (None,), Ref(0), False)),
    ],
)
def test_control_flow_and_updates_are_refused(op, arguments):
    assert op in OPS
    sketch = Sketch()
    y = sketch("aten::relu", sketch.input(SEQ, 8))
    graph = sketch.graph(y)
    (step,) = graph.instructions
    steps = (replace(step, op=op, arguments=arguments),)
    with refused(rf"instruction 0: .*does not take {op}: it has no"):
        check_ops(replace(graph, instructions=steps), "p.kvc")


@pytest.mark.parametrize("read", [False, True])
def test_the_indices_of_a_pool_are_refused_wherever_they_are_read(read):
    sketch = Sketch()
    settings = ((2, 2), (2, 2), (0, 0), (1, 1), False)
    x = sketch.input(SEQ, 1, 4, 4)
    y, indices = sketch("aten::max_pool2d_with_indices", x, *settings)
    z = sketch("aten::relu", y)
    graph = sketch.graph(z) if read else sketch.graph(z, indices)
    pool, relu = graph.instructions
    if read:
        relu = replace(relu, arguments=(indices,))
    with refused("is not float32"):
        check_ops(replace(graph, instructions=(pool, relu)), "p.kvc")


@pytest.mark.parametrize("reference", [False, True])
def test_a_file_with_such_a_part_is_refused(tmp_path, reference):
    """By the reference, too: a bundle runs here if it runs where the library is."""
    sketch = Sketch()
    _, scale, _ = sketch("kvc::quantize_rows", sketch.input(SEQ, 8))
    outputs = (sketch("aten::mul.Scalar", scale, 2.0),)
    built = partition_program({"forward": (sketch, outputs)})
    path = write_bundle(tmp_path / "p.kvc", built)
    with load(path, reference=reference) as program, refused("quantized rows"):
        program.forward(np.ones((2, 8), np.float32))
