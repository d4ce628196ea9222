"""Norms of channels, pools and resizing by XNNPACK, against the kernels of torch."""

import numpy as np
import pytest
from partition_sketch import SEQ, Sketch
from xnnpack_graphs import Native, compare, noise, run_reference

NAN, INF = np.nan, np.inf


def pools(name, x, kernel, stride, sketch):
    """Return the first result of a pool of either kind."""
    if name == "average":
        settings = (kernel, stride, (0, 0), False, True, None)
        return sketch("aten::avg_pool2d", x, *settings)
    settings = (kernel, stride, (0, 0), (1, 1), False)
    return sketch("aten::max_pool2d_with_indices", x, *settings)[0]


def adaptive(name, x, size, sketch):
    if name == "average":
        return sketch("aten::_adaptive_avg_pool2d", x, size)
    return sketch("aten::adaptive_max_pool2d", x, size)[0]


@pytest.mark.parametrize(
    ("dims", "kernel", "stride"),
    [
        ((SEQ, 3, 8, 6), (2, 2), (2, 2)),
        ((SEQ, 3, 8, 6), (2, 3), ()),
        ((SEQ, 3, 9, 7), (2, 3), (2, 3)),
        ((SEQ, 5, 4), (1, 2), (1, 2)),
        ((SEQ, 2, 5, 7), (5, 7), (1, 1)),
        ((SEQ, 2, 5, 7), (4, 7), (3, 2)),
        ((2, SEQ, 4, 4), (1, 1), (1, 1)),
        ((1, 3, 8, 8), (4, 2), (4, 2)),
    ],
)
@pytest.mark.parametrize("name", ["average", "max"])
def test_pools_of_windows_side_by_side_are_torchs(name, dims, kernel, stride):
    sketch = Sketch()
    x = sketch.input(*dims)
    # A mean of up to 35 elements in another order.
    compare(sketch, pools(name, x, kernel, stride, sketch), atol=2e-6)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "ceil_mode"),
    [
        ((3, 3), (2, 2), (1, 1), (1, 1), False),
        ((3, 2), (1, 1), (0, 0), (1, 1), False),
        ((2, 3), (3, 4), (0, 1), (1, 1), False),
        ((3, 3), (2, 3), (1, 0), (1, 1), True),
        ((2, 2), (2, 2), (1, 1), (1, 1), True),
        ((3, 2), (2, 1), (1, 0), (2, 3), False),
        ((5, 1), (1, 2), (2, 0), (1, 1), False),
    ],
)
@pytest.mark.parametrize("lead", [(SEQ, 3), (SEQ,)])
def test_pools_of_other_windows_are_torchs(
    kernel, stride, padding, dilation, ceil_mode, lead
):
    sketch = Sketch()
    x = sketch.input(*lead, 9, 8)
    settings = (kernel, stride, padding, dilation, ceil_mode)
    results = [sketch("aten::max_pool2d_with_indices", x, *settings)[0]]
    if dilation == (1, 1):
        results += [
            sketch("aten::avg_pool2d", x, kernel, stride, padding, ceil_mode, *each)
            for each in ((True, None), (False, None), (True, 7))
        ]
    compare(sketch, *results)


@pytest.mark.parametrize("name", ["average", "max"])
def test_nan_and_infinities_stay_in_windows_that_overlap(name):
    sketch = Sketch()
    x = sketch.input(SEQ, 1, 9, 9)
    settings = ((3, 3), (2, 2), (1, 1))
    if name == "average":
        y = sketch("aten::avg_pool2d", x, *settings, False, True, None)
    else:
        y = sketch("aten::max_pool2d_with_indices", x, *settings, (1, 1), False)[0]
    native = Native(sketch, y)
    x = noise(1, 1, 9, 9)
    x[0, 0, 0, 1], x[0, 0, 4, 4], x[0, 0, 8, 8], x[0, 0, 8, 0] = NAN, INF, -INF, NAN
    (found,) = native(x, seq=1)
    (expected,) = run_reference(sketch, [y], [x], {"seq": 1})
    np.testing.assert_allclose(found, expected, 1e-6, 1e-6)
    assert np.isnan(found).sum() == 3
    native.close()


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (6, 9), (3, 1)])
@pytest.mark.parametrize("name", ["average", "max"])
def test_pools_to_a_size_are_torchs(name, size):
    sketch = Sketch()
    compare(sketch, adaptive(name, sketch.input(SEQ, 3, 6, 9), size, sketch), atol=2e-6)


@pytest.mark.parametrize("name", ["average", "max"])
def test_nan_and_infinities_stay_in_their_windows(name):
    sketch = Sketch()
    y = pools(name, sketch.input(SEQ, 1, 4, 6), (2, 2), (2, 2), sketch)
    native = Native(sketch, y)
    x = noise(1, 1, 4, 6)
    x[0, 0, 0, 1], x[0, 0, 2, 2], x[0, 0, 3, 5] = NAN, INF, -INF
    (found,) = native(x, seq=1)
    (expected,) = run_reference(sketch, [y], [x], {"seq": 1})
    np.testing.assert_allclose(found, expected, 1e-6, 1e-6)
    assert np.isnan(found).sum() == 1
    native.close()


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [((5, 7), (10, 14)), ((9, 11), (4, 5)), ((3, 8), (3, 8)), ((1, 4), (6, 1))],
)
def test_bilinear_resizing_is_torchs(before, after, corners):
    sketch = Sketch()
    x = sketch.input(SEQ, 3, *before)
    y = sketch("aten::upsample_bilinear2d", x, after, corners, None, None)
    compare(sketch, y, rtol=5e-6, atol=5e-6)


def test_a_large_plane_is_resized_as_closely_as_is_stated():
    sketch = Sketch()
    x = sketch.input(1, 1, 300, 400)
    y = sketch("aten::upsample_bilinear2d", x, (500, 90), False, None, None)
    compare(sketch, y, rtol=0, atol=2e-7 * 500 * 8, lengths=(1,))


@pytest.mark.parametrize(
    ("after", "factors"), [((10, 21), (None, None)), ((5, 14), (1.0, 2.0))]
)
def test_repeated_elements_are_torchs(after, factors):
    sketch = Sketch()
    x = sketch.input(SEQ, 3, 5, 7)
    native = compare(
        sketch, sketch("aten::upsample_nearest2d", x, after, *factors), rtol=0, atol=0
    )
    assert "binary" in native.functions


@pytest.mark.parametrize("dims", [(SEQ, 6), (SEQ, 6, 5), (2, 6, SEQ, 3)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_torchs(dims, affine):
    sketch = Sketch()
    weight = sketch.constant(noise(6)) if affine else None
    bias = sketch.constant(noise(6, seed=1)) if affine else None
    mean, variance = sketch.constant(noise(6, seed=2)), sketch.constant(noise(6) ** 2)
    settings = (weight, bias, mean, variance, 1e-3)
    y = sketch("aten::batch_norm", sketch.input(*dims), *settings)
    compare(sketch, y, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dims", [(SEQ, 6), (SEQ, 6, 5), (SEQ, 6, 4, 3)])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_is_torchs(dims, groups, affine):
    sketch = Sketch()
    weight = sketch.constant(noise(6)) if affine else None
    bias = sketch.constant(noise(6, seed=1)) if affine else None
    x = sketch.input(*dims)
    y = sketch("aten::group_norm", x, groups, weight, bias, 1e-3)
    compare(sketch, y, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("axes", [(1,), (0, 2), (-1, 0), None])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("correction", [None, 0, 1, 2.5])
def test_variances_are_torchs(axes, keep, correction):
    sketch = Sketch()
    x = sketch.input(3, 4, 5) if axes is None else sketch.input(3, 4, 5, SEQ)
    settings = (axes if axes != (-1, 0) else (2, 0), correction, keep)
    both = sketch("aten::var_mean.correction", x, *settings)
    alone = sketch("aten::var.correction", x, *settings)
    compare(sketch, *both, alone, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("axes", [(1,), (0, 2), None])
@pytest.mark.parametrize("keep", [True, False])
def test_euclidean_norms_are_torchs(axes, keep):
    sketch = Sketch()
    x = sketch.input(3, 4, SEQ)
    y = sketch("aten::linalg_vector_norm", x, 2, axes, keep)
    compare(sketch, y, rtol=2e-6)


@pytest.mark.parametrize(
    "row",
    [
        *([1e19, 1], [9.3e18, 0], [1.8e19, 1], [1e20, 1], [INF, 1], [NAN, 1]),
        *([1e-18, 0], [0, 0], [3, -4]),
    ],
)
def test_a_euclidean_norm_is_torchs_up_to_infinity(row):
    sketch = Sketch()
    y = sketch("aten::linalg_vector_norm", sketch.input(2), 2, None, False)
    x = [np.array(row, np.float32)]
    (expected,) = run_reference(sketch, [y], x, {})
    (found,) = Native(sketch, y)(*x)
    np.testing.assert_allclose(found, expected, rtol=2e-6)


@pytest.mark.parametrize(("axes", "keep"), [((1,), False), ((1, -1), True)])
def test_a_euclidean_norm_of_one_element_is_its_size(axes, keep):
    sketch = Sketch()
    y = sketch("aten::linalg_vector_norm", sketch.input(SEQ, 1, 1), 2, axes, keep)
    x = [np.array([[[1e30]], [[-3e-30]], [[-INF]], [[NAN]]], np.float32)]
    (expected,) = run_reference(sketch, [y], x, {"seq": 4})
    (found,) = Native(sketch, y)(*x, seq=4)
    np.testing.assert_array_equal(found, expected)
