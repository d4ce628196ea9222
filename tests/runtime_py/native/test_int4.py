"""The native products with int4 weights against the reference."""

import pytest
import torch
from eight_rows import one_by_one, side_by_side
from native_calls import native_graph, run_native
from op_cases import Case
from quantized_rows import in_blocks, quantized, reference, some_blocks, some_rows
from torch import Tensor

F32, I8, I32, U8 = torch.float32, torch.int8, torch.int32, torch.uint8


def some_weight(columns: int, depth: int, block: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(columns * 1000 + depth)
    weight = torch.randint(0, 256, (columns, depth // 2), dtype=U8)
    scale = (torch.rand(columns, depth // block) * 0.1 + 0.001).bfloat16()
    return side_by_side(weight), side_by_side(scale)


def native(arguments: tuple[object, ...], threads: int = 2) -> Tensor:
    """Multiply rows of `kvc::quantize_rows`, or of blocks, which have factors too."""
    if arguments[2].dtype is I32:
        op, (weight, *_) = "kvc::linear_qb4", arguments[3:]
    else:
        op, (weight, *_) = "kvc::linear_q4", arguments[4:]
        arguments = (*arguments, *(None,) * (8 - len(arguments)))
    shape = (*arguments[0].shape[:-1], 8 * len(weight))
    like = (torch.empty(shape),)
    built = native_graph(Case(op, arguments), like)
    assert built is not None
    (found,) = run_native(*built, like, threads)
    return found


@pytest.mark.parametrize("rows", [*range(1, 20), 24, 31, 40, 129])
@pytest.mark.parametrize(
    ("columns", "depth", "block"),
    [(8, 32, 32), (16, 64, 32), (32, 96, 32), (56, 320, 32), (104, 192, 64)],
)
def test_a_product_is_that_of_the_reference(rows, columns, depth, block):
    weight, scale = some_weight(columns, depth, block)
    for bias in (None, torch.randn(columns)):
        arguments = (*quantized(some_rows(rows, depth)), weight, scale, bias)
        (expected,) = reference("kvc::linear_qb4", arguments, ((rows, columns), F32))
        found = native(arguments)
        atol = 1e-6 * float(expected.abs().max()) + 1e-6
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 16, 17, 24, 33, 50])
@pytest.mark.parametrize(
    ("columns", "depth", "block"),
    [(8, 32, 32), (16, 64, 32), (32, 96, 32), (56, 320, 32), (104, 192, 64)],
)
def test_a_product_of_blocks_is_that_of_the_reference(rows, columns, depth, block):
    weight, scale = some_weight(columns, depth, block)
    quantized_rows = in_blocks(some_blocks(rows, depth))
    for bias in (None, torch.randn(columns)):
        arguments = (*quantized_rows, weight, scale, bias, None)
        (expected,) = reference("kvc::linear_q4", arguments, ((rows, columns), F32))
        found = native(arguments)
        atol = 2e-6 * float(expected.abs().max()) + 1e-6
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("depth", [32, 288, 576])
@pytest.mark.parametrize("quantize", [quantized, in_blocks])
def test_bits_depend_on_neither_threads_nor_how_many_rows_there_are(depth, quantize):
    weight, scale = some_weight(104, depth, 32)
    rows = quantize(some_blocks(40, depth))
    whole = native((*rows, weight, scale, None), threads=1)
    for threads in (2, 3):
        assert torch.equal(native((*rows, weight, scale, None), threads), whole)
    for first, count in ((0, 1), (3, 2), (5, 4), (9, 7), (16, 16), (7, 33)):
        part = [each[first : first + count].contiguous() for each in rows]
        found = native((*part, weight, scale, None))
        assert torch.equal(found, whole[first : first + count])


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("magnitude", [1e-38, 1e25, 1e38, float("inf")])
def test_rows_together_are_as_alone_where_they_are_tiny_or_overflow(magnitude: float):
    weight, scale = some_weight(48, 64, 32)
    scale = (scale.float() * magnitude).bfloat16()
    sizes = 10.0 ** torch.tensor([-12, 0, 10, 16]).repeat(4)
    rows = quantized(some_rows(16, 64) * sizes[:, None])
    together = native((*rows, weight, scale, None))
    alone = [
        native((*(each[i : i + 1] for each in rows), weight, scale, None))
        for i in range(16)
    ]
    torch.testing.assert_close(
        together, torch.cat(alone), rtol=0, atol=0, equal_nan=True
    )


def signed(weight: Tensor) -> Tensor:
    """Return the values of stored weights, int64 [out, in]."""
    rows = one_by_one(weight)
    return torch.stack((rows & 15, rows >> 4), -1).flatten(1).long() - 8


@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize("zero", [-128, 127, 0, -7])
def test_integer_products_are_exact(rows: int, zero: int):
    q = torch.randint(-128, 128, (rows, 512), dtype=I8)
    q[0] = -128 if zero > 0 else 127  # as far from zero as can be
    weight, _ = some_weight(40, 512, 32)
    weight[:, :, 0], weight[:, :, 1] = 0xFF, 0
    unit, zeros = (
        torch.ones(5, 16, 8).bfloat16(),
        torch.full((rows, 1), zero, dtype=I32),
    )
    found = native((q, torch.ones(rows, 1), zeros, weight, unit, None))
    assert torch.equal(found, ((q.long() - zero) @ signed(weight).t()).float())


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize("zero", [-128, 127, 0, -7])
def test_integer_products_of_blocks_are_exact(rows: int, zero: int):
    q = torch.randint(-128, 128, (rows, 512), dtype=I8)
    q[0] = -128 if zero > 0 else 127  # as far from zero as can be
    weight, _ = some_weight(40, 512, 32)
    weight[:, :, 0], weight[:, :, 1] = 0xFF, 0
    scales = torch.ones(rows, 1), torch.ones(5, 16, 8).bfloat16()
    zeros = torch.full((rows, 16), zero, dtype=I8)
    zeros[:, ::3] = 5
    factor = torch.randint(1, 32, (rows, 16), dtype=I8)
    factor[0] = 31
    values = signed(weight).double()
    found = native((q, scales[0], zeros, factor, weight, scales[1], None))
    blocks = [each.repeat_interleave(32, 1).double() for each in (zeros, factor)]
    exact = ((q.double() - blocks[0]) * blocks[1]) @ values.t()
    torch.testing.assert_close(found, exact.float(), rtol=1e-6, atol=0)
    unit = native((q, scales[0], zeros, factor * 0 + 1, weight, scales[1], None))
    assert torch.equal(unit, ((q.double() - blocks[0]) @ values.t()).float())


@pytest.mark.parametrize("zero", [-40_000, -129, 128, 2**31 - 1])
def test_a_zero_point_outside_int8_counts_as_the_nearest_inside(zero: int):
    q, scale, inside = quantized(some_rows(17, 64))
    weight = (*some_weight(8, 64, 32), None)
    outside, inside = inside.clone(), inside.clone()
    outside[[3, 16]], inside[[3, 16]] = zero, -128 if zero < 0 else 127
    with_inside, with_outside = (
        (q, scale, inside, *weight),
        (q, scale, outside, *weight),
    )
    for computed in (by_reference, native):
        assert torch.equal(computed(with_outside), computed(with_inside))


def by_reference(arguments: tuple[object, ...]) -> Tensor:
    return reference("kvc::linear_qb4", arguments, ((17, 8), F32))[0]


def test_a_row_that_is_not_finite_leaves_the_others():
    weight, scale = some_weight(8, 64, 32)
    x = some_rows(4, 64)
    expected = native((*quantized(x), weight, scale, None))
    x[1, 3], x[2, 7] = torch.nan, torch.inf
    found = native((*quantized(x), weight, scale, None))
    assert not found[1:3].isfinite().any()
    assert torch.equal(found[[0, 3]], expected[[0, 3]])
