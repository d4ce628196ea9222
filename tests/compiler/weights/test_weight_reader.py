from dataclasses import dataclass
from math import prod

import pytest
import torch
from torch import Tensor

from kvc.compiler.weights import weight_reader
from kvc.compiler.weights.int4 import quantize_int4
from kvc.compiler.weights.int8 import quantize_channels, quantize_int8_blocks
from kvc.compiler.weights.sources import (
    Derived,
    Divided,
    StoredSource,
    TensorSource,
    Transform,
    base_of,
    nbytes_of,
)
from kvc.compiler.weights.weight_reader import WeightReader, bytes_of, is_zero, read

WEIGHT = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [254.0, 1.0, -127.0]])


def test_sources_are_equal_by_identity_and_transform():
    one, other = TensorSource(WEIGHT), TensorSource(WEIGHT.clone())
    assert one == TensorSource(WEIGHT)
    assert one != other
    assert Derived(Transform.INT8, one) == Derived(Transform.INT8, TensorSource(WEIGHT))
    assert Derived(Transform.INT8, one) != Derived(Transform.BFLOAT16, one)


def test_reading_puts_a_tensor_in_order():
    assert read(TensorSource(WEIGHT.t())).is_contiguous()
    assert torch.equal(read(TensorSource(WEIGHT.t())), WEIGHT.t())


def test_transforms_follow_one_another():
    chain = Derived(Transform.INT8, Derived(Transform.BFLOAT16, TensorSource(WEIGHT)))
    assert torch.equal(read(chain), quantize_channels(WEIGHT.bfloat16())[0])
    assert base_of(chain) == TensorSource(WEIGHT)


def test_rows_are_quantized_by_their_largest_value():
    values, scale = quantize_channels(WEIGHT)
    assert values.dtype is torch.int8
    assert values.tolist() == [[64, -127, 32], [0, 0, 0], [127, 0, -64]]
    assert scale.tolist() == [pytest.approx(2 / 127), 1.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int64])
def test_bytes_of_any_dtype_are_a_flat_view(dtype):
    tensor = torch.ones(2, 3, dtype=dtype)
    assert bytes_of(tensor).nbytes == 6 * tensor.itemsize
    assert bytes_of(tensor[:0]).nbytes == 0
    assert bytes_of(torch.ones((), dtype=dtype)).nbytes == tensor.itemsize


def test_one_element_with_a_stride_of_its_own_has_bytes():
    one = torch.arange(15.0).view(3, 5)[1:2, 0]
    assert one.is_contiguous()
    assert one.stride() == (5,)
    assert bytes(bytes_of(one)) == bytes(bytes_of(torch.tensor([5.0])))
    assert not is_zero(TensorSource(one))


def test_a_strided_tensor_may_end_in_a_block_of_one_element(monkeypatch):
    monkeypatch.setattr(weight_reader, "BLOCK_ELEMENTS", 4)
    source = TensorSource(torch.arange(18.0).view(9, 2)[:, 1])
    chunks = b"".join(WeightReader().chunks(source))
    assert chunks == bytes(bytes_of(torch.arange(1.0, 18, 2)))
    assert not is_zero(source)


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in a file, but for the file; notes what is read of it."""

    tensor: Tensor
    ranges: list[tuple[int, int]]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def elements(self, begin: int, end: int) -> Tensor:
        self.ranges.append((begin, end))
        return self.tensor.reshape(-1)[begin:end]


def stored(tensor: Tensor) -> Stored:
    return Stored(tensor, [])


def joined(source) -> bytes:
    return b"".join(WeightReader().chunks(source))


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator)


TENSORS = {
    "small": numbers(3, 4),
    "scalar": numbers(),
    "empty": numbers(0, 4),
    "empty_rows": numbers(4, 0),
    "flat": numbers(50),
    "rows": numbers(7, 9),
    "one_huge_row": numbers(1, 100),
    "huge_rows": numbers(3, 2, 100),
    "many_dims": numbers(5, 3, 2, 4),
    "transposed": numbers(9, 7).t(),
    "slice": numbers(100, 4)[30:60, 1:3],
    "expanded": numbers(1, 6).expand(9, 6),
    "bfloat16": numbers(7, 9).bfloat16(),
    "bool": numbers(7, 9) > 0,
    "int64": torch.arange(63).reshape(7, 9),
}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(weight_reader, "BLOCK_ELEMENTS", 16)


@pytest.mark.parametrize("name", TENSORS)
def test_blocks_are_exactly_the_tensors_own_bytes(name, small_blocks):
    tensor = TENSORS[name]
    exact = bytes(bytes_of(tensor.contiguous()))
    assert joined(TensorSource(tensor)) == exact
    assert joined(StoredSource(stored(tensor), tensor.dtype)) == exact
    assert torch.equal(read(TensorSource(tensor)), tensor)
    assert torch.equal(read(StoredSource(stored(tensor), tensor.dtype)), tensor)


@pytest.mark.parametrize("name", TENSORS)
def test_no_block_is_larger_than_allowed(name, small_blocks):
    tensor = TENSORS[name]
    for source in (TensorSource(tensor), StoredSource(stored(tensor), tensor.dtype)):
        blocks = list(WeightReader().blocks(source))
        assert max(block.numel() for block in blocks) <= 16
        assert all(block.is_contiguous() for block in blocks)


@pytest.mark.parametrize("name", ["small", "rows", "transposed", "slice", "expanded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_are_quantized_in_blocks_as_they_are_whole(name, dtype, small_blocks):
    tensor = TENSORS[name].to(dtype)
    values, scale = quantize_channels(tensor.float())
    for base in (TensorSource(tensor), StoredSource(stored(tensor), torch.float32)):
        assert torch.equal(read(Derived(Transform.INT8, base)), values)
        assert torch.equal(read(Derived(Transform.INT8_SCALE, base)), scale)
        rounded = read(Derived(Transform.BFLOAT16, base))
        assert torch.equal(rounded, tensor.bfloat16())


def test_rows_longer_than_a_block_are_quantized_whole(small_blocks):
    tensor = numbers(3, 100)
    for base in (TensorSource(tensor), StoredSource(stored(tensor), torch.float32)):
        values, scale = quantize_channels(tensor)
        assert torch.equal(read(Derived(Transform.INT8, base)), values)
        assert torch.equal(read(Derived(Transform.INT8_SCALE, base)), scale)


def test_a_matrix_without_rows_is_quantized_too(small_blocks):
    for base in (
        TensorSource(numbers(0, 5)),
        StoredSource(stored(numbers(0, 5)), torch.float32),
    ):
        assert read(Derived(Transform.INT8, base)).shape == (0, 5)
        assert read(Derived(Transform.INT8_SCALE, base)).shape == (0,)


def test_the_scales_behind_int8_values_are_not_computed_again(small_blocks):
    kept, reader = stored(numbers(7, 9)), WeightReader()
    base = StoredSource(kept, torch.float32)
    list(reader.chunks(Derived(Transform.INT8, base)))
    assert kept.ranges == [(i, i + 9) for i in range(0, 63, 9)]
    (scale,) = reader.blocks(Derived(Transform.INT8_SCALE, base))
    assert len(kept.ranges) == 7
    assert torch.equal(scale, quantize_channels(kept.tensor)[1])
    again = list(reader.blocks(Derived(Transform.INT8_SCALE, base)))
    assert len(kept.ranges) == 14, "they are kept no longer than needed"
    assert torch.equal(torch.cat(again), scale)


def test_values_that_were_not_read_to_their_end_leave_no_scales(small_blocks):
    base, reader = StoredSource(stored(numbers(7, 9)), torch.float32), WeightReader()
    next(reader.blocks(Derived(Transform.INT8, base)))
    scales = reader.blocks(Derived(Transform.INT8_SCALE, base))
    assert torch.equal(
        torch.cat(list(scales)), quantize_channels(base.stored.tensor)[1]
    )


@pytest.mark.parametrize("shape", [(56, 64), (24, 32), (16, 96), (0, 64)])
def test_int4_blocks_of_rows_are_those_of_the_whole(shape, small_blocks):
    tensor = numbers(*shape)
    packed, scale = quantize_int4(tensor, signed=False)
    for base in (TensorSource(tensor), StoredSource(stored(tensor), torch.float32)):
        assert torch.equal(read(Derived(Transform.INT4, base)), packed)
        assert torch.equal(read(Derived(Transform.INT4_SCALE, base)), scale)


@pytest.mark.parametrize("elements", [96, 32 * 7, 32 * 9, 32 * 16])
def test_int4_rows_come_by_eights_however_the_matrix_is_read(elements, monkeypatch):
    monkeypatch.setattr(weight_reader, "BLOCK_ELEMENTS", elements)
    tensor = numbers(48, 32)
    packed, scale = quantize_int4(tensor, signed=False)
    for base in (TensorSource(tensor), StoredSource(stored(tensor), torch.float32)):
        blocks = list(WeightReader().blocks(Derived(Transform.INT4, base)))
        assert len(blocks) > 1
        assert torch.equal(torch.cat(blocks), packed)
        assert torch.equal(read(Derived(Transform.INT4_SCALE, base)), scale)


def test_the_scales_behind_int4_values_are_not_computed_again(small_blocks):
    kept, reader = stored(numbers(16, 64)), WeightReader()
    base = StoredSource(kept, torch.float32)
    list(reader.chunks(Derived(Transform.INT4, base)))
    assert len(kept.ranges) == 16
    (int8_scale,) = torch.cat(
        list(reader.blocks(Derived(Transform.INT8_SCALE, base)))
    ).split(16)
    assert torch.equal(int8_scale, quantize_channels(kept.tensor)[1])
    assert len(kept.ranges) == 32, "another transform has scales of its own"
    (scale,) = reader.blocks(Derived(Transform.INT4_SCALE, base))
    assert len(kept.ranges) == 32
    assert torch.equal(scale, quantize_int4(kept.tensor, signed=False)[1])


def test_stored_tensors_are_cast_as_they_are_read(small_blocks):
    tensor = numbers(7, 9).bfloat16()
    source = StoredSource(stored(tensor), torch.float32)
    assert torch.equal(read(source), tensor.float())
    assert nbytes_of(source) == 63 * 4


@pytest.mark.parametrize("shape", [(9, 5), (1, 40), (0, 3), (2, 9, 5)])
def test_matrices_are_turned_whatever_blocks_they_come_in(shape, small_blocks):
    whole = torch.arange(prod(shape)).float().reshape(shape)
    turned = Derived(Transform.TRANSPOSED, TensorSource(whole))
    assert torch.equal(read(turned), whole.mT)
    rows = torch.cat(list(WeightReader().blocks(turned, whole_rows=True)))
    assert torch.equal(rows.reshape(whole.mT.shape), whole.mT)


# Blocks are of three rows, so experts begin and end within them.
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 7, 5), (5, 1, 5), (1, 9, 5)])
def test_a_matrix_is_divided_wherever_its_blocks_end(shape, small_blocks):
    whole = numbers(*shape)
    rows = whole.flatten(0, 1)
    for base in (TensorSource(rows), StoredSource(stored(rows), torch.float32)):
        divided = Divided(base, shape[0])
        assert torch.equal(read(divided), whole)
        assert torch.equal(read(Derived(Transform.TRANSPOSED, divided)), whole.mT)
        values = read(Derived(Transform.INT8, Derived(Transform.TRANSPOSED, divided)))
        expected, _ = quantize_channels(whole.mT.flatten(0, 1))
        assert torch.equal(values.flatten(0, 1), expected)
        assert base_of(divided) == base


def test_zeros_are_found_by_their_bytes(small_blocks):
    assert is_zero(TensorSource(torch.zeros(5, 9)))
    assert is_zero(StoredSource(stored(torch.zeros(0)), torch.float32))
    assert not is_zero(TensorSource(torch.tensor(-0.0)))
    last = torch.zeros(5, 9)
    last[4, 8] = 1
    assert not is_zero(StoredSource(stored(last), torch.float32))


@pytest.mark.parametrize(("rows", "columns"), [(7, 9), (5, 640), (3, 1152), (0, 640)])
def test_rows_are_quantized_by_blocks_however_the_matrix_is_read(
    rows, columns, small_blocks
):
    tensor = numbers(rows, columns)
    values, scale = quantize_int8_blocks(tensor)
    for base in (TensorSource(tensor), StoredSource(stored(tensor), torch.float32)):
        assert torch.equal(read(Derived(Transform.INT8_BLOCKS, base)), values)
        assert torch.equal(read(Derived(Transform.INT8_BLOCKS_SCALE, base)), scale)


def test_the_scales_behind_blocks_of_int8_are_not_computed_again(small_blocks):
    kept, reader = stored(numbers(7, 640)), WeightReader()
    base = StoredSource(kept, torch.float32)
    list(reader.chunks(Derived(Transform.INT8_BLOCKS, base)))
    (scale,) = reader.blocks(Derived(Transform.INT8_BLOCKS_SCALE, base))
    assert len(kept.ranges) == 7
    assert torch.equal(scale, quantize_int8_blocks(kept.tensor)[1])


def test_matrices_of_experts_are_quantized_by_blocks_of_their_rows(small_blocks):
    whole = numbers(3, 640, 4)
    base = Derived(Transform.TRANSPOSED, TensorSource(whole))
    values, scale = quantize_int8_blocks(whole.mT.reshape(12, 640))
    assert torch.equal(
        read(Derived(Transform.INT8_BLOCKS, base)), values.view(3, 4, 640)
    )
    found = read(Derived(Transform.INT8_BLOCKS_SCALE, base))
    assert torch.equal(found, scale.view(3, 4, 4))
