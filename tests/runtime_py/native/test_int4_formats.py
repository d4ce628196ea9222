"""Native int4 products whose scales and minimums have the dtypes of other formats."""

from collections.abc import Callable

import block_reference
import numpy as np
import pytest
import torch
from eight_rows import one_by_one, side_by_side, unpack_int4
from fused_sums import fused
from native_calls import native_graph, run_native
from op_cases import Case, type_of
from quantized_rows import in_blocks, reference, some_blocks
from torch import Tensor

from kvc.runtime.delegates.cpu import binding
from kvc.runtime.native.library import find_library
from kvc.schema.backends.cpu_rows import products_of_rows
from kvc.schema.dtypes import DType
from kvc.schema.graph import Caller, Constant, Graph, Instruction, Ref, Scratch, Value
from kvc.schema.types import TensorType

F16, F32, BF16 = torch.float16, torch.float32, torch.bfloat16
SCALES, MINIMUMS = (BF16, F16, F32), (None, F16, F32)
ROWS = [1, 2, 15, 16, 17, 40]
SHAPES = [(8, 32, 32), (16, 64, 32), (56, 320, 64), (104, 384, 128), (48, 96, 32)]


def weights(
    columns: int, depth: int, block: int, scale: torch.dtype, least: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return packed values, scales and minimums; a minimum is about -7 scales."""
    torch.manual_seed(columns * 1000 + depth)
    packed = torch.randint(0, 256, (columns, depth // 2), dtype=torch.uint8)
    sizes = torch.rand(columns, depth // block) * 0.1 + 0.001
    made = -sizes * (5 + 4 * torch.rand(columns, depth // block))
    minimum = None if least is None else side_by_side(made.to(least))
    return side_by_side(packed), side_by_side(sizes.to(scale)), minimum


def native(arguments: tuple[object, ...], threads: int = 2) -> Tensor:
    like = (torch.empty(len(arguments[0]), 8 * len(arguments[4])),)
    built = native_graph(Case("kvc::linear_q4", arguments), like)
    assert built is not None
    return run_native(*built, like, threads)[0]


def by_torch(arguments: tuple[object, ...]) -> Tensor:
    shape = (len(arguments[0]), 8 * len(arguments[4]))
    return reference("kvc::linear_q4", arguments, (shape, F32))[0]


def as_float(tensor: Tensor) -> np.ndarray:
    return one_by_one(tensor.float()).numpy()


def in_order(arguments: tuple[object, ...]) -> np.ndarray:
    """Return the product, its sums taken as kernels promise: block after block.

    The kernel of the instruction set `portable` rounds a product before it is added.
    """
    q, row_scale, zero, factor, weight, scale, bias, minimum = arguments
    multiply_add: Callable[..., np.ndarray] = fused
    if find_library().processor == "portable":
        multiply_add = lambda a, b, c: a * b + c  # noqa: E731  # of arrays of float32
    steps = block_reference.steps_of(q.numpy(), zero.numpy(), factor.numpy())
    values, scales = unpack_int4(weight.numpy()), as_float(scale)
    block = values.shape[1] // scales.shape[1]
    total = np.zeros((len(steps), len(values)), np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, values.shape[1], 32):
            part, group = slice(first, first + 32), first // block
            exact = (steps[:, part] @ values[:, part].T).astype(np.float32)
            total = multiply_add(exact, scales[:, group], total)
            if minimum is not None:
                least = as_float(minimum)[:, group]
                offset = multiply_add(np.float32(8), scales[:, group], least)
                sums = steps[:, part].sum(1, keepdims=True).astype(np.float32)
                total = multiply_add(sums, offset, total)
        total = total / row_scale.numpy()
    return total if bias is None else total + bias.numpy()


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("least", MINIMUMS)
@pytest.mark.parametrize(("columns", "depth", "block"), SHAPES)
def test_a_product_has_the_bits_that_are_promised(columns, depth, block, scale, least):
    weight, scales, minimum = weights(columns, depth, block, scale, least)
    for rows in ROWS:
        quantized = in_blocks(some_blocks(rows, depth))
        for bias in (None, torch.randn(columns)):
            arguments = (*quantized, weight, scales, bias, minimum)
            found = native(arguments)
            assert np.array_equal(found.numpy(), in_order(arguments))
            expected = by_torch(arguments)
            # A row's sums cancel in part: the error is that of the terms.
            atol = 1e-5 * float(expected.abs().max()) + 1e-6
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("least", MINIMUMS)
def test_the_reference_multiplies_by_value_times_scale_plus_minimum(scale, least):
    weight, scales, minimum = weights(24, 128, 64, scale, least)
    quantized = in_blocks(some_blocks(9, 128))
    bias = torch.randn(24)
    arguments = (*quantized, weight, scales, bias, minimum)
    given = [each.numpy() for each in (*quantized, weight)]
    others = [None if each is None else each.float() for each in (scales, minimum)]
    scales, minimum = (None if each is None else each.numpy() for each in others)
    wanted = block_reference.linear_q4(*given, scales, bias.numpy(), minimum)
    torch.testing.assert_close(
        by_torch(arguments), torch.from_numpy(wanted), rtol=1e-5, atol=1e-4
    )


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("scale", [F16, F32])
@pytest.mark.parametrize("least", MINIMUMS)
def test_bits_depend_on_neither_threads_nor_how_many_rows_there_are(scale, least):
    weight, scales, minimum = weights(104, 320, 64, scale, least)
    rows = in_blocks(some_blocks(40, 320))
    whole = native((*rows, weight, scales, None, minimum), threads=1)
    for threads in (2, 3):
        given = (*rows, weight, scales, None, minimum)
        assert torch.equal(native(given, threads), whole)
    for first, count in ((0, 1), (3, 2), (5, 4), (9, 7), (16, 16), (7, 33)):
        part = [each[first : first + count].contiguous() for each in rows]
        found = native((*part, weight, scales, None, minimum))
        assert torch.equal(found, whole[first : first + count])


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf"), 6e4])
@pytest.mark.parametrize("least", MINIMUMS)
@pytest.mark.parametrize("rows", [1, 17])
def test_odd_scales_and_minimums_spoil_their_own_columns_only(odd, least, rows):
    weight, scales, minimum = weights(56, 96, 32, F16, least)
    clean = native((*in_blocks(some_blocks(rows, 96)), weight, scales, None, minimum))
    spoiled = {3, 50}
    scales[0, 1, 3] = odd
    (scales if minimum is None else minimum)[6, 2, 2] = odd
    arguments = (*in_blocks(some_blocks(rows, 96)), weight, scales, None, minimum)
    found = native(arguments)
    np.testing.assert_array_equal(found.numpy(), in_order(arguments))
    kept = [column for column in range(56) if column not in spoiled]
    assert torch.equal(found[:, kept], clean[:, kept])
    if odd != 6e4:
        assert not found[:, list(spoiled)].isfinite().any()
        assert not by_torch(arguments)[:, list(spoiled)].isfinite().any()


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_leaves_the_others(odd: float):
    weight, scales, minimum = weights(16, 64, 32, F16, F32)
    for rows in (4, 20):
        x = some_blocks(rows, 64)
        expected = native((*in_blocks(x), weight, scales, None, minimum))
        x[1, 3] = odd
        found = native((*in_blocks(x), weight, scales, None, minimum))
        assert not found[1].isfinite().any()
        others = [i for i in range(rows) if i != 1]
        assert torch.equal(found[others], expected[others])


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("zero", [-128, 127, 3])
def test_the_greatest_sums_are_exact(rows: int, zero: int):
    q = torch.full((rows, 64), -128 if zero > 0 else 127, dtype=torch.int8)
    zeros = torch.full((rows, 2), zero, dtype=torch.int8)
    factor = torch.full((rows, 2), 31, dtype=torch.int8)
    weight = torch.full((1, 8, 8, 4), 0x88, dtype=torch.uint8)  # 8: -8 comes to 0
    scale, minimum = torch.ones(1, 2, 8), torch.full((1, 2, 8), -7.0)
    arguments = (q, torch.ones(rows, 1), zeros, factor, weight, scale, None, minimum)
    steps = (q.double() - zero) * 31
    assert torch.equal(
        native(arguments), steps.sum(1, keepdim=True).repeat(1, 8).float()
    )


MIXED = [(BF16, None), (F16, F32), (F32, None), (BF16, F16), (F32, F32)]


@pytest.mark.usefixtures("each_processor")
@pytest.mark.parametrize("rows", [1, 3, 17, 24])
def test_products_of_the_same_rows_may_have_any_dtypes(
    rows: int, monkeypatch: pytest.MonkeyPatch
):
    x = some_blocks(rows, 192)
    products = [
        (
            *weights(8 * (2 + i), 192, 64 if i % 2 else 32, *dtypes),
            torch.randn(16 + 8 * i),
        )
        for i, dtypes in enumerate(MIXED)
    ]
    built, tensors = _gathered(x, products)
    assert products_of_rows(built) == {len(MIXED): tuple(range(len(MIXED) + 1))}
    outs = [torch.empty(rows, len(bias)) for *_, bias in products]
    together = run_native(built, tensors, outs, 3)
    with monkeypatch.context() as patched:
        patched.setattr(binding, "products_of_rows", lambda _: {})
        apart = run_native(built, tensors, outs, 1)
    quantized = in_blocks(x)
    for i, (weight, scale, minimum, bias) in enumerate(products):
        arguments = (*quantized, weight, scale, bias, minimum)
        assert np.array_equal(together[i].numpy(), in_order(arguments))
        assert torch.equal(together[i], apart[i])


def _gathered(
    x: Tensor, products: list[tuple[Tensor | None, ...]]
) -> tuple[Graph, dict[int, Tensor]]:
    """Return a graph that quantizes x [rows, in] and multiplies it; its operands.

    A product is a weight, scales, minimums or None, and a bias.
    """
    rows, depth = x.shape
    values, tensors = [Value(type_of(x), Caller())], {0: x}
    size = 4 * rows * depth

    def computed(dtype: DType, *shape: int) -> int:
        values.append(
            Value(TensorType(dtype, shape), Scratch(size * len(values), size))
        )
        return len(values) - 1

    def constant(tensor: Tensor | None) -> Ref | None:
        if tensor is None:
            return None
        tensors[len(values)] = tensor
        values.append(Value(type_of(tensor), Constant(len(values))))
        return Ref(len(values) - 1)

    blocks = DType.INT8, rows, depth // 32
    made = (
        computed(DType.INT8, rows, depth),
        computed(DType.FLOAT32, rows, 1),
        computed(*blocks),
        computed(*blocks),
    )
    steps = [Instruction("kvc::quantize_blocks", (Ref(0),), made)]
    for weight, scale, minimum, bias in products:
        given = [constant(each) for each in (weight, scale, bias, minimum)]
        out = computed(DType.FLOAT32, rows, len(bias))
        steps.append(Instruction("kvc::linear_q4", (*map(Ref, made), *given), (out,)))
    outs = tuple(step.results[0] for step in steps[1:])
    nbytes = size * len(values)
    graph = Graph(tuple(values), (0,), outs, tuple(steps), nbytes, nbytes)
    return graph, tensors
