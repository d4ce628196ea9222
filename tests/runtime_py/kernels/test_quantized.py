import numpy as np
import pytest
import quant_reference
import torch
from eight_rows import one_by_one, unpack_int4
from kernel_calls import run

from kvc.runtime.kernels import quantized

GENERATOR = np.random.default_rng(0)
F32, I8, I32 = torch.float32, torch.int8, torch.int32


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    lead = (*x.shape[:-1], 1)
    with torch.inference_mode():
        return run(
            "kvc::quantize_rows", (x,), ((x.shape, I8), (lead, F32), (lead, I32))
        )


def linear(x, weight, weight_scale, bias):
    shape = (*x.shape[:-1], weight.shape[0])
    arguments = (*quantize(x), weight, weight_scale, bias)
    with torch.inference_mode():
        return run("kvc::linear_qd8", arguments, ((shape, F32),))[0]


def assert_quantized_as_reference(x: np.ndarray) -> None:
    expected = quant_reference.quantize_rows(x)
    for result, wanted in zip(quantize(torch.from_numpy(x)), expected, strict=True):
        assert result.numpy().dtype == wanted.dtype
        np.testing.assert_array_equal(result.numpy(), wanted)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape, np.float32)


@pytest.mark.parametrize("rows", [0, 1, 7, 33, 128])
def test_rows_are_quantized_as_the_reference_does(rows: int):
    spread = 10 ** GENERATOR.uniform(-6, 6, (rows, 1)).astype(np.float32)
    shift = normal(rows, 1)
    assert_quantized_as_reference((normal(rows, 96) + shift) * spread)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 8), np.float32),
        np.full((1, 8), 3.25, np.float32),
        np.full((1, 8), -3.25, np.float32),
        -np.abs(normal(4, 33)) - 1,
        np.abs(normal(4, 33)) + 1,
        np.array([[0.5]], np.float32),
        np.array([-1.0, 0.0, 1.0, 0.5], np.float32),
        np.arange(-128, 128, dtype=np.float32).reshape(1, 256) / 2,
        normal(2, 3, 5),
    ],
    ids=[
        "zero",
        "positive",
        "negative",
        "below",
        "above",
        "single",
        "vector",
        "halves",
        "batched",
    ],
)
def test_unusual_rows_are_quantized_as_the_reference_does(x: np.ndarray):
    assert_quantized_as_reference(x)


def test_many_random_rows_agree_at_every_rounding():
    assert_quantized_as_reference(normal(4000, 3))


def test_rows_may_lie_apart_in_memory():
    x = torch.from_numpy(normal(5, 7, 2))[..., 0]
    wanted = quant_reference.quantize_rows(x.numpy())
    for result, expected in zip(quantize(x), wanted, strict=True):
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("width", "channels"), [(64, 96), (33, 17), (1, 1)])
@pytest.mark.parametrize("rows", [1, 7, 33, 128])
def test_linear_matches_the_reference(rows, width, channels, with_bias):
    x = normal(rows, width)
    x[::3] = 0
    x[1::5] = -np.abs(x[1::5]) - 1
    weight = GENERATOR.integers(-127, 128, (channels, width), np.int8)
    weight[0] = 0
    weight_scale = GENERATOR.uniform(0.001, 0.1, channels).astype(np.float32)
    bias = normal(channels) if with_bias else None
    wanted = quant_reference.linear_qd8(
        *quant_reference.quantize_rows(x), weight, weight_scale, bias
    )
    result = linear(
        torch.from_numpy(x),
        torch.from_numpy(weight),
        torch.from_numpy(weight_scale),
        None if bias is None else torch.from_numpy(bias),
    )
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_the_integer_part_is_exact_with_unit_scales():
    q = torch.from_numpy(GENERATOR.integers(-128, 128, (5, 500), np.int8))
    weight = torch.from_numpy(GENERATOR.integers(-127, 128, (40, 500), np.int8))
    zero = torch.tensor([[-128], [127], [0], [5], [-7]], dtype=I32)
    ones = torch.ones(40)
    for rows in (slice(0, 1), slice(0, 5)):
        arguments = (
            q[rows],
            torch.ones_like(zero[rows], dtype=F32),
            zero[rows],
            weight,
        )
        shape = (len(q[rows]), 40)
        (y,) = run("kvc::linear_qd8", (*arguments, ones, None), ((shape, F32),))
        exact = (q[rows].long() - zero[rows].long()) @ weight.long().t()
        assert torch.equal(y, exact.float())


@pytest.mark.parametrize("shape", [(1, 1, 16), (2, 3, 16), (16,), (0, 16), (2, 0, 16)])
def test_linear_keeps_leading_dims(shape: tuple[int, ...]):
    x = torch.from_numpy(normal(*shape))
    weight = torch.from_numpy(GENERATOR.integers(-127, 128, (4, 16), np.int8))
    y = linear(x, weight, torch.ones(4), None)
    approximate = x @ weight.float().t()
    torch.testing.assert_close(y, approximate, rtol=0.05, atol=10)


def narrow_weight(channels, width, block):
    """Return a weight uint8 and its scales bfloat16, eight channels side by side."""
    weight = GENERATOR.integers(0, 256, (channels // 8, width // 8, 8, 4), np.uint8)
    scale = GENERATOR.uniform(0.001, 0.1, (channels // 8, width // block, 8))
    return weight, torch.from_numpy(scale).bfloat16()


def narrow_linear(x, weight, weight_scale, bias):
    shape = (*x.shape[:-1], 8 * weight.shape[0])
    arguments = (*quantize(x), weight, weight_scale, bias)
    with torch.inference_mode():
        return run("kvc::linear_qb4", arguments, ((shape, F32),))[0]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("width", "channels", "block"), [(64, 96, 32), (32, 8, 32), (192, 24, 64)]
)
@pytest.mark.parametrize("rows", [1, 7, 128])
def test_int4_linear_matches_the_reference(rows, width, channels, block, with_bias):
    x = normal(rows, width)
    x[::3] = 0
    x[1::5] = -np.abs(x[1::5]) - 1
    weight, scale = narrow_weight(channels, width, block)
    weight[0, :, 0] = 0x88
    bias = normal(channels) if with_bias else None
    wanted = quant_reference.linear_qb4(
        *quant_reference.quantize_rows(x), weight, scale.float().numpy(), bias
    )
    result = narrow_linear(
        torch.from_numpy(x),
        torch.from_numpy(weight),
        scale,
        None if bias is None else torch.from_numpy(bias),
    )
    largest = np.abs(wanted).max() + 1
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-6 * largest)


def test_the_low_half_of_a_byte_is_the_first_of_its_two_values():
    q = torch.zeros(1, 32, dtype=I8)
    q[0, 0], q[0, 1] = 1, 100
    weight = torch.full((1, 4, 8, 4), 0x88, dtype=torch.uint8)
    weight[0, 0, 5, 0] = 0xF1  # 7 above, -7 below
    ones, zero = torch.ones(1, 1), torch.zeros(1, 1, dtype=I32)
    arguments = (q, ones, zero, weight, torch.ones(1, 1, 8).bfloat16(), None)
    (y,) = run("kvc::linear_qb4", arguments, (((1, 8), F32),))
    assert y.tolist() == [[0, 0, 0, 0, 0, 693, 0, 0]]


def test_int4_products_are_exact_with_unit_scales():
    q = torch.from_numpy(GENERATOR.integers(-128, 128, (5, 512), np.int8))
    weight, _ = narrow_weight(40, 512, 32)
    zero = torch.tensor([[-128], [127], [0], [5], [-7]], dtype=I32)
    unit = torch.ones(5, 16, 8).bfloat16()
    arguments = (q, torch.ones(5, 1), zero, torch.from_numpy(weight), unit, None)
    (y,) = run("kvc::linear_qb4", arguments, (((5, 40), F32),))
    values = torch.from_numpy(unpack_int4(weight))
    assert torch.equal(y, ((q.long() - zero.long()) @ values.t()).float())


def test_int4_weights_are_widened_in_chunks(monkeypatch):
    x = torch.from_numpy(normal(3, 64))
    weight, scale = narrow_weight(56, 64, 32)
    whole = narrow_linear(x, torch.from_numpy(weight), scale, None)
    monkeypatch.setattr(quantized, "_CHUNK", 64 * 17)
    parts = narrow_linear(x, torch.from_numpy(weight), scale, None)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 32), (2, 3, 32), (32,), (0, 32), (2, 0, 32)])
def test_int4_linear_keeps_leading_dims(shape: tuple[int, ...]):
    x = torch.from_numpy(normal(*shape))
    weight, scale = narrow_weight(8, 32, 32)
    y = narrow_linear(x, torch.from_numpy(weight), scale, None)
    values = unpack_int4(weight) * one_by_one(scale.float().numpy())
    approximate = x @ torch.from_numpy(values).float().t()
    torch.testing.assert_close(y, approximate, rtol=0.05, atol=0.5)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_odd_numbers_spoil_their_own_row_only(odd: float):
    x = torch.from_numpy(normal(3, 16))
    weight = torch.from_numpy(GENERATOR.integers(1, 128, (4, 16), np.int8))
    clean = linear(x, weight, torch.ones(4), None)
    x[1, 5] = odd
    y = linear(x, weight, torch.ones(4), None)
    assert not y[1].isfinite().any()
    assert torch.equal(y[0], clean[0])
    assert torch.equal(y[2], clean[2])


def test_a_row_of_vanishing_range_gives_zeros():
    x = torch.full((1, 16), 1e-38)
    weight = torch.from_numpy(GENERATOR.integers(1, 128, (4, 16), np.int8))
    assert torch.equal(linear(x, weight, torch.ones(4), None), torch.zeros(1, 4))


@pytest.mark.parametrize("lead", [(), (3,), (2, 5), (0,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_embedding_matches_the_reference(lead, dtype):
    weight = GENERATOR.integers(-127, 128, (50, 24), np.int8)
    scale = GENERATOR.uniform(0.001, 0.1, 50).astype(np.float32)
    indices = torch.from_numpy(np.asarray(GENERATOR.integers(0, 50, lead))).to(dtype)
    wanted = quant_reference.embedding_q8(weight, scale, indices.numpy())
    arguments = (torch.from_numpy(weight), torch.from_numpy(scale), indices)
    (rows,) = run("kvc::embedding_q8", arguments, ((wanted.shape, F32),))
    np.testing.assert_array_equal(rows.numpy(), wanted)


@pytest.mark.parametrize("blocks", [1, 2, 6])
def test_rows_of_a_table_may_have_a_scale_for_each_block(blocks: int):
    weight = GENERATOR.integers(-127, 128, (50, 24), np.int8)
    scale = GENERATOR.uniform(0.001, 0.1, (50, blocks)).astype(np.float32)
    indices = GENERATOR.integers(0, 50, (2, 5))
    wanted = quant_reference.embedding_q8(weight, scale, indices)
    arguments = tuple(map(torch.from_numpy, (weight, scale, indices)))
    (rows,) = run("kvc::embedding_q8", arguments, ((wanted.shape, F32),))
    np.testing.assert_array_equal(rows.numpy(), wanted)


@pytest.mark.parametrize("bias", [None, torch.from_numpy(normal(7))])
@pytest.mark.parametrize(("rows", "depth"), [(1, 96), (5, 3), (0, 8), (2, 1 << 17)])
def test_floats_times_int8_are_what_the_reference_says(
    rows: int, depth: int, bias: torch.Tensor | None
):
    """The last one is widened in several parts."""
    x, scale = torch.from_numpy(normal(rows, 1, depth)), torch.from_numpy(normal(7))
    weight = torch.from_numpy(GENERATOR.integers(-127, 128, (7, depth), np.int8))
    arguments = (x, weight, scale, bias)
    with torch.inference_mode():
        (found,) = run("kvc::linear_w8", arguments, (((rows, 1, 7), F32),))
    given = [None if each is None else each.numpy() for each in arguments]
    wanted = quant_reference.linear_w8(*given)
    slack = 1e-5 * depth**0.5 * 127
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=slack)


@pytest.mark.parametrize("scales", [(0,), (0, 2)])
def test_nothing_is_looked_up_in_a_table_without_rows(scales: tuple[int, ...]):
    table = torch.zeros(0, 64, dtype=I8), torch.zeros(scales)
    ids = torch.zeros(0, dtype=torch.int64)
    (found,) = run("kvc::embedding_q8", (*table, ids), (((0, 64), F32),))
    assert found.shape == (0, 64)
