import block_reference
import numpy as np
import pytest
import torch
from kernel_calls import run

from kvc.runtime.kernels.table import load_kernels
from kvc.schema.errors import IndexOutOfRange
from kvc.schema.ops import OPS

GENERATOR = np.random.default_rng(0)
F32, I8 = torch.float32, torch.int8


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    lead, count = x.shape[:-1], -(-x.shape[-1] // 32)
    blocks = ((*lead, count), I8)
    with torch.inference_mode():
        results = ((x.shape, I8), ((*lead, 1), F32), blocks, blocks)
        return run("kvc::quantize_blocks", (x,), results)


def product(op: str, arguments: tuple, shape: tuple[int, ...]) -> torch.Tensor:
    given = tuple(
        torch.from_numpy(each) if isinstance(each, np.ndarray) else each
        for each in arguments
    )
    with torch.inference_mode():
        return run(op, given, ((shape, F32),))[0]


def assert_quantized_as_reference(x: np.ndarray) -> None:
    wanted = block_reference.quantize_blocks(x)
    for found, expected in zip(quantize(torch.from_numpy(x)), wanted, strict=True):
        assert found.numpy().dtype == expected.dtype
        np.testing.assert_array_equal(found.numpy(), expected)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape, np.float32)


def lively(rows: int, width: int) -> np.ndarray:
    """Return rows whose blocks differ in size, as activations of a model do."""
    spread = 10 ** GENERATOR.uniform(-6, 6, (rows, 1)).astype(np.float32)
    x = (normal(rows, width) + normal(rows, 1)) * spread
    x[:, ::71] *= 20
    return x


def int8(*shape: int) -> np.ndarray:
    return GENERATOR.integers(-127, 128, shape, np.int8)


def scales(*shape: int) -> np.ndarray:
    return GENERATOR.uniform(0.001, 0.1, shape).astype(np.float32)


def int4(channels: int, width: int, block: int) -> tuple[np.ndarray, torch.Tensor]:
    weight = GENERATOR.integers(0, 256, (channels // 8, width // 8, 8, 4), np.uint8)
    scale = torch.from_numpy(scales(channels // 8, width // block, 8)).bfloat16()
    return weight, scale


@pytest.mark.parametrize("width", [1, 31, 32, 33, 96, 257, 2112, 2113])
@pytest.mark.parametrize("rows", [0, 1, 7, 33])
def test_rows_are_quantized_as_the_reference_does(rows: int, width: int):
    assert_quantized_as_reference(lively(rows, width))


@pytest.mark.parametrize("width", [4384, 4417, 11008, 66001])
@pytest.mark.parametrize("kind", ["even", "lively", "mixed"])
def test_factors_of_long_rows_add_up_to_2048_at_most(width: int, kind: str):
    x = normal(3, width) if kind == "even" else lively(3, width)
    if kind == "mixed":
        x[0, 100:] = 0
    assert_quantized_as_reference(x)
    factors = quantize(torch.from_numpy(x))[3].int()
    limit = max(2048, factors.shape[1])
    assert (factors.sum(dim=1) <= limit).all()
    assert factors.min() >= 1


def test_the_largest_block_of_a_short_row_has_the_factor_31():
    factors = quantize(torch.from_numpy(normal(50, 2048)))[3]
    assert factors.amax(dim=1).tolist() == [31] * 50


def test_a_small_block_beside_a_large_one_keeps_its_values():
    x = normal(1, 64)
    x[0, 32:] *= 1 / 40
    q, scale, zero, factor = quantize(torch.from_numpy(x))
    steps = (q.view(2, 32).float() - zero.view(2, 1)) * factor.view(2, 1)
    errors = (steps.view(1, 64) / scale - torch.from_numpy(x)).abs()
    assert factor.tolist() == [[31, 1]]
    assert errors[0, 32:].max() < errors[0, :32].max() / 20


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 40), np.float32),
        np.full((1, 40), 3.25, np.float32),
        np.full((1, 40), -3.25, np.float32),
        -np.abs(normal(4, 65)) - 1,
        np.abs(normal(4, 65)) + 1,
        np.array([[0.5]], np.float32),
        np.array([-1.0, 0.0, 1.0, 0.5], np.float32),
        np.arange(-128, 128, dtype=np.float32).reshape(1, 256) / 2,
        normal(2, 3, 35),
        normal(3, 70) * np.float32(1e38),
        normal(3, 70) * np.float32(1e-33),
        normal(3, 70) * np.float32(1e-38),
        np.full((1, 40), 1e-45, np.float32),
        np.array([[3e38] * 32 + [1e-38] * 32], np.float32),
        np.array([[3e38, -3e38], [1, 2]], np.float32),
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
        "huge",
        "small",
        "tiny",
        "subnormal",
        "apart",
        "no range",
    ],
)
def test_unusual_rows_are_quantized_as_the_reference_does(x: np.ndarray):
    found = quantize(torch.from_numpy(x))
    wanted = block_reference.quantize_blocks(x)
    known = np.isfinite(wanted[1]).reshape(-1)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    rows = [each.reshape(len(known), -1) for each in (found[0].numpy(), wanted[0])]
    np.testing.assert_array_equal(rows[0][known], rows[1][known])


def test_many_random_rows_agree_at_every_rounding():
    assert_quantized_as_reference(normal(4000, 35))


def test_rows_may_lie_apart_in_memory():
    x = torch.from_numpy(normal(5, 70, 2))[..., 0]
    wanted = block_reference.quantize_blocks(x.numpy())
    for result, expected in zip(quantize(x), wanted, strict=True):
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("width", "channels", "blocks"),
    [(64, 96, 1), (64, 96, 2), (33, 17, 1), (1, 1, 1), (768, 40, 3), (5632, 9, 22)],
)
@pytest.mark.parametrize("rows", [0, 1, 7, 33])
def test_int8_products_have_the_bits_of_the_reference(
    rows, width, channels, blocks, with_bias
):
    x, weight = lively(rows, width), int8(channels, width)
    x[::3] = 0
    weight[0] = 0
    rest = weight, scales(channels, blocks), normal(channels) if with_bias else None
    quantized = block_reference.quantize_blocks(x)
    wanted = block_reference.linear_q8(*quantized, *rest)
    found = product("kvc::linear_q8", (*quantized, *rest), (rows, channels))
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_the_largest_sums_of_int8_products_are_exact():
    """Every value is 255 steps from its zero point, every weight is -128."""
    width = 1 << 16
    rows = (np.full((1, width), 127, np.int8), np.ones((1, 1), np.float32))
    blocks = np.full((1, 2048), -128, np.int8), np.ones((1, 2048), np.int8)
    weight = np.full((2, width), -128, np.int8)
    rest = (weight, np.ones((2, 1), np.float32), None)
    found = product("kvc::linear_q8", (*rows, *blocks, *rest), (1, 2))
    assert found.tolist() == [[-128.0 * 255 * width] * 2]


@pytest.mark.parametrize("shape", [(1, 1, 16), (2, 3, 16), (16,), (0, 16), (2, 0, 16)])
def test_products_keep_leading_dims(shape: tuple[int, ...]):
    x, weight = torch.from_numpy(normal(*shape)), int8(4, 16)
    rest = (weight, np.ones((4, 1), np.float32), None)
    found = product("kvc::linear_q8", (*quantize(x), *rest), (*shape[:-1], 4))
    approximate = x @ torch.from_numpy(weight).float().t()
    torch.testing.assert_close(found, approximate, rtol=0.05, atol=10)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("width", "channels", "block"), [(64, 96, 32), (32, 8, 32), (192, 24, 64)]
)
@pytest.mark.parametrize("rows", [0, 1, 7, 128])
def test_int4_products_match_the_reference(rows, width, channels, block, with_bias):
    x = lively(rows, width)
    x[::3] = 0
    weight, scale = int4(channels, width, block)
    weight[0, :, 0] = 0x88
    bias = normal(channels) if with_bias else None
    quantized = block_reference.quantize_blocks(x)
    rest = weight, scale.float().numpy(), bias, None
    wanted = block_reference.linear_q4(*quantized, *rest)
    found = product(
        "kvc::linear_q4", (*quantized, weight, scale, bias, None), (rows, channels)
    )
    largest = np.abs(wanted).max(axis=1, keepdims=True, initial=0) + 1e-3
    np.testing.assert_array_less(np.abs(found.numpy() - wanted) / largest, 2e-6)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("op", ["kvc::linear_q8", "kvc::linear_q4"])
def test_odd_numbers_spoil_their_own_row_only(op: str, odd: float):
    x = torch.from_numpy(normal(3, 64))
    rest = (int8(8, 64), scales(8, 2)) if op == "kvc::linear_q8" else int4(8, 64, 32)
    rest = (*rest, *(None,) * (len(OPS[op].params) - 7))
    clean = product(op, (*quantize(x), *rest, None), (3, 8))
    x[1, 45] = odd
    rows = quantize(x)
    found = product(op, (*rows, *rest, None), (3, 8))
    assert rows[3][1].tolist() == [1, 1]
    assert rows[2][1].tolist() == [0, 0]
    assert found[1].isnan().all()
    assert torch.equal(found[0], clean[0])
    assert torch.equal(found[2], clean[2])


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("bias", [False, True])
def test_experts_have_the_bits_of_the_reference(rows: int, bias: bool):
    added = normal(4, 5) if bias else None
    chosen = GENERATOR.integers(0, 4, rows)
    rest = (int8(4, 5, 128), scales(4, 5, 2), chosen, added)
    quantized = block_reference.quantize_blocks(lively(rows, 128))
    wanted = block_reference.expert_linear_q8(*quantized, *rest)
    found = product("kvc::expert_linear_q8", (*quantized, *rest), (rows, 5))
    np.testing.assert_array_equal(found.numpy(), wanted)


def test_an_expert_that_is_not_there_is_refused_before_anything_is_written():
    rows = quantize(torch.from_numpy(normal(2, 16)))
    rest = (torch.from_numpy(int8(4, 5, 16)), torch.ones(4, 5, 1))
    out = torch.full((2, 5), 7.0)
    with pytest.raises(IndexOutOfRange):
        load_kernels()["kvc::expert_linear_q8"](
            out, *rows, *rest, torch.tensor([0, 4]), None
        )
    assert (out == 7).all()
