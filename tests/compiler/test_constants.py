import pytest
import torch

from kvc.compiler.constants import (
    Derived,
    TensorSource,
    Transform,
    base_of,
    bytes_of,
    read,
)
from kvc.compiler.quantize import quantize_channels

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
