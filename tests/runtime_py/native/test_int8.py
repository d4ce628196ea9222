"""The native int8 kernels against the reference, whose numbers they must be."""

import pytest
import torch
from native_calls import native_graph, run_native
from op_cases import Case
from quantized_rows import in_blocks, quantized, reference, some_blocks, some_rows
from torch import Tensor

from kvc.compiler.weights.int4 import quantize_int4
from kvc.schema.ops import OPS

F32, I8, I32 = torch.float32, torch.int8, torch.int32


def native(op: str, arguments: tuple[object, ...], like: tuple[Tensor, ...], threads=2):
    built = native_graph(Case(op, arguments), like)
    assert built is not None
    return run_native(*built, like, threads)


@pytest.mark.parametrize("rows", [0, 1, 7, 33])
@pytest.mark.parametrize("width", [1, 7, 8, 96, 129])
def test_rows_are_quantized_as_by_the_reference(rows: int, width: int):
    x = some_rows(rows, width)
    x[rows // 2 :: 3] = 0
    expected = quantized(x)
    for found, wanted in zip(
        native("kvc::quantize_rows", (x,), expected), expected, strict=True
    ):
        assert torch.equal(found, wanted)


ODD_ROWS = (  # of any width, each a number times a row
    (0, 1.0),
    (torch.nan, 1.0),
    (torch.inf, 1.0),
    (3e38, 1.0),
    (1.0, 3e38),
    (1.0, 1e30),
    (1.0, 1e-30),
    (1.0, 3e-35),
    (1.0, 1e-35),
    (1.0, 1e-44),
)


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("width", [1, 31, 32, 33, 95, 577, 4384, 4416, 9000])
def test_blocks_of_rows_are_quantized_as_by_the_reference(rows: int, width: int):
    """Of 4,384 values on, factors may be too many to be as large as others."""
    x = some_blocks(rows, width)
    for row, (number, times) in zip(x[3:], ODD_ROWS, strict=False):
        row *= times
        row[width // 2 :: 40] = number
    expected = in_blocks(x)
    found = native("kvc::quantize_blocks", (x,), expected)
    known = expected[1][:, 0].isfinite()
    assert torch.equal(found[0][known], expected[0][known])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[2], expected[2])
    assert torch.equal(found[3], expected[3])


def test_factors_become_smaller_where_they_would_be_too_many():
    x = some_blocks(3, 9000)
    x[0] = x[0, :32].repeat(282)[:9000]  # all blocks alike
    (_, _, _, factor) = native("kvc::quantize_blocks", (x,), in_blocks(x))
    assert factor.sum(dim=-1, dtype=torch.int32).amax() <= 2048
    assert factor.amax(dim=-1)[0] < 31


def test_a_row_that_is_not_finite_gives_no_finite_product_and_leaves_the_others():
    x, weight = some_rows(4, 40), torch.ones(5, 40, dtype=I8)
    x[1, 3], x[2, 7] = torch.nan, torch.inf
    like = quantized(x)
    rows = native("kvc::quantize_rows", (x,), like)
    arguments = (*rows, weight, torch.ones(5), None)
    (found,) = native("kvc::linear_qd8", arguments, (torch.empty(4, 5),))
    expected = reference(
        "kvc::linear_qd8", (*like, weight, torch.ones(5), None), ((4, 5), F32)
    )
    assert not found[1:3].isfinite().any()
    assert torch.equal(found[[0, 3]], expected[0][[0, 3]])


SHAPES = [  # columns, depth, and scales of each column
    (1, 1, 1), (6, 31, 1), (25, 33, 1), (50, 95, 1), (9, 577, 1), (7, 4416, 1),
    (49, 576, 2), (97, 96, 3), (13, 64, 2), (25, 1536, 6), (20, 288, 9), (5, 2592, 9),
]  # fmt: skip


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 16, 17, 24, 33, 50])
@pytest.mark.parametrize(("columns", "depth", "parts"), SHAPES)
def test_products_of_blocks_have_the_bits_of_the_reference(
    rows: int, columns: int, depth: int, parts: int
):
    weight = torch.randint(-128, 128, (columns, depth), dtype=I8)
    quantized_rows = in_blocks(some_blocks(rows, depth))
    for bias in (None, torch.randn(columns)):
        arguments = (*quantized_rows, weight, torch.rand(columns, parts), bias)
        expected = reference("kvc::linear_q8", arguments, ((rows, columns), F32))
        for threads in (1, 2, 3):
            found = native("kvc::linear_q8", arguments, expected, threads)
            assert torch.equal(found[0], expected[0])


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("parts", [1, 4])
def test_a_prompt_that_is_cut_gives_the_same_bits(parts: int):
    weight = torch.randint(-128, 128, (50, 512), dtype=I8), torch.rand(50, parts), None
    rows = in_blocks(some_blocks(67, 512))
    like = torch.empty(67, 50)
    (whole,) = native("kvc::linear_q8", (*rows, *weight), (like,))
    for first, count in ((0, 1), (3, 2), (5, 4), (9, 7), (16, 16), (7, 33), (2, 65)):
        part = [each[first : first + count].contiguous() for each in rows]
        (found,) = native("kvc::linear_q8", (*part, *weight), (like[:count],))
        assert torch.equal(found, whole[first : first + count])


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("rows", [3, 19])
@pytest.mark.parametrize("parts", [1, 2])
def test_blocks_of_rows_of_any_size_multiply_as_by_the_reference(rows: int, parts: int):
    q, scale, zero, factor = (x.clone() for x in in_blocks(some_blocks(rows, 64)))
    sizes = (1e-38, 1e-30, 1e-18, 1.0, 3e38, 1e-45, 0.0, torch.inf, torch.nan, 1e18)
    scale[: len(sizes), 0] = torch.tensor(sizes)[-rows:]
    weight = torch.randint(-128, 128, (50, 64), dtype=I8)
    of_weight = torch.rand(50, parts) * 10 ** torch.linspace(-42, 38, 50)[:, None]
    arguments = (q, scale, zero, factor, weight, of_weight, None)
    expected = reference("kvc::linear_q8", arguments, ((rows, 50), F32))
    found = native("kvc::linear_q8", arguments, expected)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [3, 19])
def test_scales_of_any_size_divide_as_by_the_reference(rows: int):
    q, scale, zero = (x.clone() for x in quantized(some_rows(rows, 40)))
    sizes = (1e-38, 1e-30, 1e-18, 1e-3, 3.0, 1e18, 1e30, 3e38, 1e-45, torch.inf)
    scale[: len(sizes), 0] = torch.tensor(sizes)[-rows:]
    weight = torch.randint(-127, 128, (50, 40), dtype=I8)
    arguments = (q, scale, zero, weight, torch.rand(50), None)
    expected = reference("kvc::linear_qd8", arguments, ((rows, 50), F32))
    found = native("kvc::linear_qd8", arguments, expected)
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("rows", [*range(1, 20), 24, 31, 32, 40, 49, 129])
@pytest.mark.parametrize(
    ("columns", "depth"), [(1, 1), (6, 16), (25, 33), (50, 96), (9, 200)]
)
def test_a_product_has_the_bits_of_the_reference(rows: int, columns: int, depth: int):
    weight = torch.randint(-127, 128, (columns, depth), dtype=I8)
    for bias in (None, torch.randn(columns)):
        arguments = (
            *quantized(some_rows(rows, depth)),
            weight,
            torch.rand(columns),
            bias,
        )
        expected = reference("kvc::linear_qd8", arguments, ((rows, columns), F32))
        for threads in (1, 2, 3):
            found = native("kvc::linear_qd8", arguments, expected, threads)
            assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("zero", [-40_000, -129, 128, 2**31 - 1])
def test_a_zero_point_outside_int8_counts_as_the_nearest_inside(zero: int):
    q, scale, inside = quantized(some_rows(17, 32))
    weight = torch.randint(-127, 128, (5, 32), dtype=I8), torch.rand(5), None
    outside, inside = inside.clone(), inside.clone()
    outside[[3, 16]], inside[[3, 16]] = zero, -128 if zero < 0 else 127
    expected = reference("kvc::linear_qd8", (q, scale, inside, *weight), ((17, 5), F32))
    found = reference("kvc::linear_qd8", (q, scale, outside, *weight), ((17, 5), F32))
    assert torch.equal(found[0], expected[0])
    found = native("kvc::linear_qd8", (q, scale, outside, *weight), expected)
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("zero", [-40_000, -129, 128, 2**31 - 1])
def test_so_it_does_for_experts(zero: int):
    q, scale, inside = quantized(some_rows(9, 33))
    weight = torch.randint(-127, 128, (4, 5, 33), dtype=I8), torch.rand(4, 5)
    chosen = (*weight, torch.randint(0, 4, (9,)), None)
    outside, inside = inside.clone(), inside.clone()
    outside[[3, 8]], inside[[3, 8]] = zero, -128 if zero < 0 else 127
    op = "kvc::expert_linear_qd8"
    expected = reference(op, (q, scale, inside, *chosen), ((9, 5), F32))
    found = reference(op, (q, scale, outside, *chosen), ((9, 5), F32))
    assert torch.equal(found[0], expected[0])
    found = native(op, (q, scale, outside, *chosen), expected)
    assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("rows", [1, 2, 9, 60])
def test_experts_have_the_bits_of_the_reference(rows: int):
    weight = torch.randint(-127, 128, (4, 25, 33), dtype=I8)
    experts = torch.randint(0, 3, (rows,))
    for bias in (None, torch.randn(4, 25)):
        arguments = (
            *quantized(some_rows(rows, 33)),
            weight,
            torch.rand(4, 25),
            experts,
            bias,
        )
        expected = reference("kvc::expert_linear_qd8", arguments, ((rows, 25), F32))
        for threads in (1, 2, 3):
            found = native("kvc::expert_linear_qd8", arguments, expected, threads)
            assert torch.equal(found[0], expected[0])


@pytest.mark.parametrize("rows", [1, 9, 60])
@pytest.mark.parametrize("parts", [1, 3])
def test_experts_of_blocks_have_the_bits_of_the_reference(rows: int, parts: int):
    weight = torch.randint(-128, 128, (4, 25, 96), dtype=I8), torch.rand(4, 25, parts)
    experts, quantized_rows = (
        torch.randint(0, 3, (rows,)),
        in_blocks(some_blocks(rows, 96)),
    )
    for bias in (None, torch.randn(4, 25)):
        arguments = (*quantized_rows, *weight, experts, bias)
        expected = reference("kvc::expert_linear_q8", arguments, ((rows, 25), F32))
        for threads in (1, 2, 3):
            found = native("kvc::expert_linear_q8", arguments, expected, threads)
            assert torch.equal(found[0], expected[0])


def test_the_longest_rows_do_not_overflow():
    depth = 65_536
    x = torch.full((1, depth), 1.0)
    x[0, 0] = 0.0
    weight = torch.full((2, depth), -127, dtype=I8)
    arguments = (*quantized(x), weight, torch.ones(2), None)
    (found,) = native("kvc::linear_qd8", arguments, (torch.empty(1, 2),))
    torch.testing.assert_close(found, torch.full((1, 2), -127.0 * (depth - 1)))


@pytest.mark.parametrize("rows", [17, 31, 48])
def test_sums_that_wrap_around_on_the_way_are_exact(rows: int):
    depth = 65_536
    torch.manual_seed(rows)
    q = torch.randint(0, 2, (rows, depth), dtype=I8) * -1 - 127
    weight = torch.randint(0, 2, (50, depth), dtype=I8) * -1 - 127
    q[0], weight[0], weight[1] = -128, -128, 127
    zero = torch.full((rows, 1), 127, dtype=I32)
    arguments = (q, torch.ones(rows, 1), zero, weight, torch.ones(50), None)
    (found,) = native("kvc::linear_qd8", arguments, (torch.empty(rows, 50),))
    exact = (q.double() - 127) @ weight.double().t()
    assert torch.equal(found, exact.float())


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("rows", [1, 17, 48])
@pytest.mark.parametrize("parts", [1, 256])
def test_sums_of_blocks_that_wrap_around_on_the_way_are_exact(rows: int, parts: int):
    """The most that rows may be: factors that sum to 2,048."""
    depth = 65_536
    torch.manual_seed(rows)
    q = torch.randint(0, 2, (rows, depth), dtype=I8) * -1 - 127
    weight = torch.randint(0, 2, (50, depth), dtype=I8) * -1 - 127
    q[0], weight[0], weight[1] = -128, -128, 127
    zero = torch.full((rows, 2048), 127, dtype=I8)
    factor = torch.ones(rows, 2048, dtype=I8)
    arguments = (q, torch.ones(rows, 1), zero, factor, weight, torch.ones(50, parts))
    like = (torch.empty(rows, 50),)
    (found,) = native("kvc::linear_q8", (*arguments, None), like)
    sums = (q.view(rows, parts, -1).double() - 127).transpose(0, 1) @ weight.view(
        50, parts, -1
    ).double().permute(1, 2, 0)
    expected = sums[0].float()
    for each in sums[1:]:
        expected += each.float()
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("rows", [1, 16, 32])
@pytest.mark.parametrize("parts", [1, 64])
def test_the_greatest_factors_fit(rows: int, parts: int):
    depth = 2048
    q = torch.full((rows, depth), -128, dtype=I8)
    q[::3] = 127
    zero = torch.full((rows, depth // 32), 127, dtype=I8)
    zero[::3] = -128
    weight = torch.full((50, depth), -128, dtype=I8)
    weight[::2] = 127
    factor = torch.full((rows, depth // 32), 31, dtype=I8)
    arguments = (
        q,
        torch.ones(rows, 1),
        zero,
        factor,
        weight,
        torch.ones(50, parts),
        None,
    )
    (found,) = native("kvc::linear_q8", arguments, (torch.empty(rows, 50),))
    steps = (q.double() - zero.repeat_interleave(32, 1)) * 31
    sums = steps.view(rows, parts, -1).transpose(0, 1) @ weight.view(
        50, parts, -1
    ).double().permute(1, 2, 0)
    expected = sums[0].float()
    for each in sums[1:]:
        expected += each.float()
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("op", ["kvc::linear_q8", "kvc::linear_q4"])
@pytest.mark.parametrize("rows", [1, 16, 32])
def test_factors_from_anywhere_count_as_the_nearest_that_fit(op: str, rows: int):
    q, scale, zero, factor = in_blocks(some_rows(rows, 64))
    wild = factor.clone()
    wild[:, 0], wild[::2, 1] = 127, -128
    near = wild.clamp(1, 31)
    if op == "kvc::linear_q8":
        weight = (torch.randint(-127, 128, (24, 64), dtype=I8), torch.ones(24, 1))
    else:
        weight = quantize_int4(torch.randn(24, 64), signed=True)
    rest = (*weight, *(None,) * (len(OPS[op].params) - 6))
    empty = (torch.empty(rows, 24),)
    found, wanted = (
        native(op, (q, scale, zero, each, *rest), empty)[0].clone()
        for each in (wild, near)
    )
    assert torch.equal(found, wanted)
    (expected,) = reference(op, (q, scale, zero, wild, *rest), ((rows, 24), F32))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)


def test_caches_are_quantized_as_by_the_reference():
    x = some_rows(12, 24).view(2, 3, 2, 24)
    x[0, 1], x[1, 2, 0, 3], x[1, 0, 1, 2] = 0, torch.nan, torch.inf
    expected = reference(
        "kvc::quantize_cache", (x,), (x.shape, I8), (x.shape[:-1], F32)
    )
    found = native("kvc::quantize_cache", (x,), expected)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0, equal_nan=True)


def test_an_embedding_has_the_bits_of_the_reference():
    weight, scale = torch.randint(-127, 128, (30, 17), dtype=I8), torch.rand(30)
    for dtype in (torch.int32, torch.int64):
        arguments = (weight, scale, torch.randint(0, 30, (2, 5), dtype=dtype))
        expected = reference("kvc::embedding_q8", arguments, ((2, 5, 17), F32))
        assert torch.equal(
            native("kvc::embedding_q8", arguments, expected)[0], expected[0]
        )


@pytest.mark.parametrize("parts", [1, 2, 17])
def test_an_embedding_has_scales_of_parts_of_rows(parts: int):
    weight, scale = torch.randint(-127, 128, (30, 34), dtype=I8), torch.rand(30, parts)
    for table in (weight, weight.t().contiguous().t()):
        arguments = (table, scale, torch.randint(0, 30, (2, 5)))
        expected = reference("kvc::embedding_q8", arguments, ((2, 5, 34), F32))
        found = native("kvc::embedding_q8", arguments, expected)
        assert torch.equal(found[0], expected[0])


def test_rows_of_an_expanded_view_are_quantized_where_they_lie():
    x = some_rows(2, 20)[:, None].expand(2, 3, 20)
    expected = quantized(x)
    for found, wanted in zip(
        native("kvc::quantize_rows", (x,), expected), expected, strict=True
    ):
        assert torch.equal(found, wanted)


def test_an_embedding_reads_a_turned_table():
    weight, scale = torch.randint(-127, 128, (17, 30), dtype=I8).t(), torch.rand(30)
    arguments = (weight, scale, torch.tensor([29, 0, 7]))
    expected = reference("kvc::embedding_q8", arguments, ((3, 17), F32))
    found = native("kvc::embedding_q8", arguments, expected)
    assert torch.equal(found[0], expected[0])
