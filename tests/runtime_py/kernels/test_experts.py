import numpy as np
import pytest
import quant_reference
import torch
from kernel_calls import run

from kvc.runtime.kernels.table import load_kernels, load_preparations
from kvc.schema.errors import IndexOutOfRange

OP = "kvc::expert_linear_qd8"
GENERATOR = np.random.default_rng(0)


def operands(rows: int, bias: bool) -> list[np.ndarray | None]:
    x = GENERATOR.standard_normal((rows, 16), np.float32)
    weight = GENERATOR.integers(-127, 128, (4, 5, 16), np.int8)
    scale = GENERATOR.uniform(0.01, 1, (4, 5)).astype(np.float32)
    experts = GENERATOR.integers(0, 4, rows)
    added = GENERATOR.standard_normal((4, 5), np.float32) if bias else None
    return [*quant_reference.quantize_rows(x), weight, scale, experts, added]


def tensors(arrays):
    return [None if a is None else torch.from_numpy(a) for a in arrays]


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("bias", [False, True])
def test_quantized_experts_equal_the_reference(rows, bias):
    arrays = operands(rows, bias)
    with torch.inference_mode():
        shape = ((rows, 5), torch.float32)
        (result,) = run(OP, tuple(tensors(arrays)), (shape,))
    wanted = quant_reference.expert_linear_qd8(*arrays)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_a_prepared_kernel_serves_call_after_call():
    first, second = operands(3, True), operands(5, True)
    place, prepare = load_preparations()[OP]
    second[place:5] = first[place:5]
    linear = prepare(torch.from_numpy(first[place]))
    for arrays in (first, second, first):
        out = torch.empty(len(arrays[0]), 5)
        linear(out, *tensors(arrays))
        wanted = quant_reference.expert_linear_qd8(*arrays)
        np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_an_expert_that_is_not_there_is_refused_before_anything_is_written():
    arguments = tensors(operands(2, False))
    arguments[5] = torch.tensor([0, 4])
    out = torch.full((2, 5), 7.0)
    with pytest.raises(IndexOutOfRange):
        load_kernels()[OP](out, *arguments)
    assert (out == 7).all()
