"""Sizes of 0: what the library refuses is computed all the same."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hand_built import write_bundle
from partition_sketch import Sketch
from xnnpack_graphs import library_or_skip, noise
from xnnpack_programs import partition_program

from kvc.runtime import load
from kvc.runtime.delegates.xnnpack.handles import dims_that_must_be
from kvc.schema.types import Affine

A = Affine(0, (("a", 1),))
PLAIN = ((1, 1), (0, 0), (1, 1), 1)


@pytest.fixture(autouse=True)
def library():
    return library_or_skip()


def const(sketch, *shape):
    return sketch.constant(noise(*shape, seed=9))


def rest_of_convolution(sketch):
    x, weight = sketch.input(A, 2, 5, 5), const(sketch, 4, 2, 3, 3)
    y = sketch("aten::convolution", x, weight, None, *PLAIN)
    return sketch("aten::sum.dim_IntList", y, (0,), False)


def transposed(sketch):
    x, weight = sketch.input(A, 2, 5), const(sketch, 2, 3, 4)
    settings = (None, (2,), (1,), (0,), 1, (1,))
    return sketch("aten::conv_transpose1d", x, weight, *settings)


def later(sketch):
    """A product over nothing whose zeros are used further on."""
    y = sketch("aten::bmm", sketch.input(2, 2, A), sketch.input(2, A, 3))
    return sketch("aten::add.Tensor", y, const(sketch, 3), 1)


def average(sketch):
    settings = ((2, 2), (2, 2), (0, 0), False, True, None)
    return sketch("aten::avg_pool2d", sketch.input(A, 2, 4, 6), *settings)


def greatest(sketch):
    settings = ((2, 3), (), (0, 0), (1, 1), False)
    x = sketch.input(A, 2, 4, 6)
    return sketch("aten::max_pool2d_with_indices", x, *settings)[0]


def overlapping(sketch):
    x, window = sketch.input(A, 2, 5, 6), ((3, 3), (2, 2), (1, 1))
    return sketch(
        "aten::add.Tensor",
        sketch("aten::max_pool2d_with_indices", x, *window, (1, 1), False)[0],
        sketch("aten::avg_pool2d", x, *window, False, False, None),
        1,
    )


def resized(sketch):
    x = sketch.input(A, 2, 4, 6)
    return sketch("aten::upsample_bilinear2d", x, (5, 9), False, None, None)


def grouped(sketch):
    x = sketch.input(A, 4, 3)
    return sketch("aten::group_norm", x, 2, None, None, 1e-5)


PLANES = {
    "average": average,
    "greatest": greatest,
    "overlapping": overlapping,
    "bilinear": resized,
    "nearest": lambda s: s(
        "aten::upsample_nearest2d", s.input(A, 2, 4, 6), (8, 6), None, None
    ),
    "group norm": grouped,
    "vector norm": lambda s: s(
        "aten::linalg_vector_norm", s.input(3, A), 2, (1,), False
    ),
}
CASES = {
    "softmax": lambda s: s("aten::softmax.int", s.input(4, A), -1),
    "batches": lambda s: s("aten::bmm", s.input(A, 2, 3), s.input(A, 3, 4)),
    "rows": lambda s: s("aten::bmm", s.input(2, A, 3), s.input(2, 3, 4)),
    "columns": lambda s: s("aten::bmm", s.input(2, 2, 3), s.input(2, 3, A)),
    "inner": lambda s: s("aten::bmm", s.input(2, 2, A), s.input(2, A, 3)),
    "inner of mm": lambda s: s("aten::mm", s.input(2, A), s.input(A, 3)),
    "inner of addmm": lambda s: s(
        "aten::addmm", s.input(3), s.input(2, A), s.input(A, 3), 1, 1
    ),
    "batches, a constant": lambda s: s(
        "aten::matmul", s.input(A, 2, 3), const(s, 1, 3, 4)
    ),
    "rows, constants": lambda s: s("aten::matmul", s.input(2, A, 3), const(s, 2, 3, 4)),
    "convolution": rest_of_convolution,
    "transposed convolution": transposed,
    "later": later,
}


@pytest.mark.parametrize("make", [*CASES.values(), *PLANES.values()])
def test_a_size_of_0_is_computed_between_others(tmp_path, make):
    sketch = Sketch(a=(0, 24))
    outputs = (make(sketch),)
    built = partition_program({"forward": (sketch, outputs)})
    path = write_bundle(tmp_path / "p.kvc", built)
    graph = sketch.graph(*outputs)
    kinds = [graph.values[value].type for value in graph.inputs]
    with load(path, reference=False) as ours, load(path, reference=True) as theirs:
        for size in (3, 0, 5, 0, 3):
            inputs = [noise(*kind.shape({"a": size}), seed=size) for kind in kinds]
            found, wanted = ours.forward(*inputs), theirs.forward(*inputs)
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_without_torch_kvcs_own_kernels_compute_it(tmp_path):
    methods, shapes = {}, {}
    for name in sorted(CASES.keys() - {"convolution", "transposed convolution"}):
        sketch, key = Sketch(a=(0, 24)), f"m{len(methods)}"
        outputs = (CASES[name](sketch),)
        methods[key], graph = (sketch, outputs), sketch.graph(*outputs)
        kinds = [graph.values[value].type for value in graph.inputs]
        shapes[key] = [[kind.shape({"a": size}) for kind in kinds] for size in (3, 0)]
    path = write_bundle(tmp_path / "p.kvc", partition_program(methods))
    code = """
        import json, sys
        sys.modules["torch"] = None
        import numpy as np
        from kvc.runtime import (load)
        with load(sys.argv[1], reference=False) as program:
            for name, calls in json.loads(sys.argv[2]).items():
                for shapes in calls:
                    given = [np.ones(shape, np.float32) for shape in shapes]
                    assert np.isfinite(program.call(name, *given)).all(), name
    """
    arguments = [str(path), json.dumps(shapes)]
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_sizes_that_the_library_refuses_are_named():
    sketch = Sketch(a=(0, 24))
    x = sketch.input(A, 3)
    y = sketch("aten::linear", x, const(sketch, 4, 3), None)
    y = sketch("aten::mm", y, const(sketch, 4, 5))
    y = sketch("aten::softmax.int", sketch("aten::relu", y), -1)
    assert dims_that_must_be(sketch.graph(y)) == ()
    y = sketch("aten::mm", sketch("aten::transpose.int", y, 0, 1), y)
    assert dims_that_must_be(sketch.graph(y)) == (A,)


def test_the_weights_of_a_program_that_may_start_with_nothing_are_packed(tmp_path):
    sketch = Sketch(a=(0, 24))
    x = sketch.input(A, 4)
    y = sketch("aten::linear", x, const(sketch, 4, 4), None)
    outputs = (sketch("aten::mm", sketch("aten::transpose.int", x, 0, 1), y),)
    built = partition_program({"forward": (sketch, outputs)})
    path = write_bundle(tmp_path / "p.kvc", built)
    with load(path, reference=False) as program:
        resources = program._engine._resources
        handles = {0: resources._delegate(0)}
        (packing,) = resources._backends["xnnpack"].pack(handles)
        assert packing.weight == "forward.c0"
        assert np.array_equal(program.forward(noise(0, 4)), np.zeros((4, 4)))
        assert program.forward(noise(2, 4)).any()
