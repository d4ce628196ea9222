"""Operands that a shader cannot count are refused: its offsets have 32 bits."""

import math

import numpy as np
import pytest

from kvc.runtime.arrays import Array
from kvc.runtime.delegates.vulkan.indexing import FRESH, UPDATES
from kvc.runtime.delegates.vulkan.steps import Steps

INDEX = np.zeros(3, np.int64)


def shaped(*shape: int, dtype: type = np.int8, gaps: bool = True) -> Array:
    """Return what has a shape without its memory, which nobody may look at."""
    size = np.dtype(dtype).itemsize if gaps else 0
    strides = [math.prod(shape[i + 1 :]) * size for i in range(len(shape))]
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, strides)


def steps() -> Steps:
    return Steps(lambda address: address, lambda nbytes: np.empty(nbytes, np.uint8))


TABLE = shaped(1 << 16, 1 << 16)


@pytest.mark.parametrize(
    ("op", "shape", "arguments"),
    [
        ("aten::embedding", (3, 1 << 16), (TABLE, INDEX)),
        ("kvc::embedding_q8", (3, 1 << 16), (TABLE, np.ones(1 << 16), INDEX)),
        ("aten::index.Tensor", (3, 1 << 16), (TABLE, (INDEX,))),
        ("aten::gather", (3, 1), (TABLE, 0, INDEX[:, None])),
    ],
)
def test_indices_over_more_than_a_shader_counts_are_refused(
    op: str, shape: tuple[int, ...], arguments: tuple[object, ...]
) -> None:
    with pytest.raises(ValueError, match="spans more than"):
        FRESH[op](steps(), [np.zeros(shape, np.int8)], *arguments)


def test_writes_at_indices_of_more_than_a_shader_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="spans more than"):
        UPDATES["aten::index_copy"](
            steps(), [TABLE], 0, INDEX, np.zeros((3, 1 << 16), np.int8)
        )
    index = shaped(1 << 16, 1 << 16, dtype=np.int64, gaps=False)
    with pytest.raises(ValueError, match="of which a shader counts"):
        UPDATES["aten::index_put"](
            steps(), [np.zeros(4, np.int8)], (index,), np.int8(1), False
        )


def test_sums_of_more_than_a_shader_counts_are_refused() -> None:
    x = shaped(2, 1 << 16, 1 << 16, dtype=np.float32, gaps=False)
    with pytest.raises(ValueError, match="of which a shader counts"):
        FRESH["aten::sum.dim_IntList"](
            steps(), [np.zeros(2, np.float32)], x, (1, 2), False
        )
