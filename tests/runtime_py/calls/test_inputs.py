"""What may be passed, and how it is taken."""

import numpy as np
import pytest

from kvc.runtime import InputMismatch
from kvc.runtime.calls.inputs import take_inputs
from kvc.runtime.calls.sizes import Signature
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType


def signature(dtype):
    return Signature("run", ["x"], [TensorType(dtype, (2,))], [dtype.numpy], {})


def test_an_array_is_taken_without_a_copy():
    x = np.zeros(2, np.float32)
    assert take_inputs(signature(DType.FLOAT32), [x]).arrays[0] is x


def test_a_tensor_is_taken_without_a_copy():
    import torch

    x = torch.zeros(2)
    taken = take_inputs(signature(DType.FLOAT32), [x])
    assert taken.as_tensors
    assert taken.arrays[0].ctypes.data == x.data_ptr()


def test_a_lazily_negated_tensor_is_resolved():
    import torch

    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert x.is_neg()
    assert take_inputs(signature(DType.FLOAT32), [x]).arrays[0].tolist() == [-2, 4]


@pytest.mark.parametrize("value", [1, 1.5, True, "text", object()])
def test_what_is_no_array_is_refused_by_its_kind(value):
    with pytest.raises(InputMismatch, match=f"a Python {type(value).__name__}; pass"):
        take_inputs(signature(DType.INT64), [value])


def test_a_sparse_tensor_is_refused():
    import torch

    with pytest.raises(InputMismatch, match="a tensor that numpy cannot take"):
        take_inputs(signature(DType.FLOAT32), [torch.zeros(2).to_sparse()])


@pytest.mark.parametrize("dtype", ["float64", "int32", "complex64", ">f4", "<U3"])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(InputMismatch, match=r"expected float32\[2\], got "):
        take_inputs(signature(DType.FLOAT32), [np.zeros(2, dtype)])
