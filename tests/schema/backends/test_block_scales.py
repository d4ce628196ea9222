"""Tables of int8 rows with several scales each: which backends leave them alone."""

import pytest

from kvc.schema.backends import coreml, cpu, mlx, vulkan
from kvc.schema.backends.operands import Operand
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType


def operand(dtype: DType, *dims: int, constant: bool = True) -> Operand:
    return Operand(TensorType(dtype, dims), constant)


def why_not(backend: object, *scale: int) -> str:
    table = operand(DType.INT8, 9, 64), operand(DType.FLOAT32, *scale)
    ids = operand(DType.INT64, 3, constant=False)
    results = [TensorType(DType.FLOAT32, (3, 64))]
    return backend.why_not("kvc::embedding_q8", (*table, ids), results)


@pytest.mark.parametrize("backend", [coreml, mlx, vulkan])
def test_a_table_with_scales_of_blocks_is_refused(backend: object):
    assert why_not(backend, 9) == ""
    assert "scales float32[9, 2]" in why_not(backend, 9, 2)


def test_the_backend_cpu_takes_both():
    assert why_not(cpu, 9) == why_not(cpu, 9, 2) == ""
