"""Weights of equal bytes that are packed in different ways are different weights."""

import numpy as np
import pytest
from hand_built import write_bundle
from partition_sketch import SEQ, Sketch
from xnnpack_graphs import library_or_skip, noise
from xnnpack_programs import float_sketch, linear_sketch, numbers, partition_program

from kvc.runtime import load
from kvc.runtime.delegates.xnnpack import layouts
from kvc.runtime.delegates.xnnpack.identities import identify

SCALES = np.linspace(0.01, 0.02, 8, dtype=np.float32)
CALL = "fully_connected 0"


@pytest.fixture(autouse=True)
def library():
    return library_or_skip()


def check(tmp_path, sketch, outputs, *inputs):
    """Check one method's results against the reference's, and return the program's."""
    built = partition_program({"forward": (sketch, outputs)})
    path = write_bundle(tmp_path / "p.kvc", built)
    with load(path, reference=False) as ours, load(path, reference=True) as theirs:
        for found, wanted in zip(
            ours.forward(*inputs), theirs.forward(*inputs), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
        backend = ours._engine._resources._backends["xnnpack"]
        return backend._weights.entries()


def convolve(sketch, x, weight, groups, stride=1):
    numbers = (None, (stride, stride), (0, 0), (1, 1), groups)
    return sketch("aten::convolution", x, weight, *numbers)


@pytest.mark.parametrize(
    ("each", "first", "second"),
    [(2, 1, 8), (2, 2, 4), (1, 2, 4), (1, 8, 2), (1, 1, 8)],
)
def test_one_weight_of_convolutions_with_other_groups(tmp_path, each, first, second):
    sketch = Sketch()
    weight = sketch.constant(noise(8, each, 3, 3))
    shapes = [(1, each * groups, 6, 6) for groups in (first, second)]
    outputs = tuple(
        convolve(sketch, sketch.input(*shape), weight, groups)
        for shape, groups in zip(shapes, (first, second), strict=True)
    )
    inputs = [noise(*shape, seed=1) for shape in shapes]
    assert len(check(tmp_path, sketch, outputs, *inputs)) == 2


@pytest.mark.parametrize(("out", "columns"), [(2, 6), (3, 64), (64, 33), (2, 1000)])
@pytest.mark.parametrize("swapped", [False, True])
def test_one_weight_of_products_in_two_shapes(tmp_path, out, columns, swapped):
    sketch = Sketch()
    weight = sketch.constant(noise(columns, out))
    x, z = sketch.input(SEQ, columns), sketch.input(SEQ, out)
    inputs = [noise(3, columns, seed=1), noise(3, out, seed=2)]

    def plain():
        return sketch("aten::mm", x, weight)

    def viewed():
        return sketch("aten::mm", z, sketch("aten::view", weight, (out, columns)))

    makers = (viewed, plain) if swapped else (plain, viewed)
    outputs = tuple(make() for make in makers)
    assert len(check(tmp_path, sketch, outputs, *inputs)) == 2


def test_one_weight_of_equal_convolutions_is_packed_once(tmp_path):
    sketch = Sketch()
    weight = sketch.constant(noise(8, 2, 3, 3))
    xs = [sketch.input(1, 4, 6, size) for size in (6, 9)]
    outputs = tuple(convolve(sketch, x, weight, 2) for x in xs)
    inputs = [noise(1, 4, 6, size) for size in (6, 9)]
    assert len(check(tmp_path, sketch, outputs, *inputs)) == 1


@pytest.fixture
def declared(tmp_path):
    """A program with a weight int8 [8, 16], scales [8] and a weight float32 [3, 16]."""
    partitions = {
        "one": linear_sketch(numbers((8, 16)), SCALES),
        "two": float_sketch(noise(3, 16)),
    }
    path = write_bundle(tmp_path / "p.kvc", partition_program(partitions))
    with load(path, reference=True) as program:
        yield program._engine.program


def test_all_that_decides_the_packing_tells_weights_apart(declared):
    given = (declared, (0, 1, None), layouts.PLAIN, (8, 16), CALL)
    plain = identify(*given)
    assert plain == identify(*given)
    others = [
        (declared, (0, None, 1), *given[2:]),
        (declared, (2, 1, None), *given[2:]),
        (*given[:2], layouts.IN_OUT, *given[3:]),
        (*given[:3], (16, 8), CALL),
        (*given[:4], "fully_connected 1"),
    ]
    assert len({plain, *(identify(*other) for other in others)}) == 6


def test_the_bound_on_a_packing_is_that_of_the_shape_in_which_it_is_packed(declared):
    """A weight [8, 16], read as [1, 128], may be padded to many more rows."""
    square = identify(declared, (0, 1, None), layouts.PLAIN, (8, 16), CALL)
    flat = identify(declared, (0, 1, None), layouts.PLAIN, (1, 128), CALL)
    assert square.packed_bound == 8 * 264 * 272 + 64 * (264 + 272)
    assert flat.packed_bound == 8 * 257 * 384 + 64 * (257 + 384)
