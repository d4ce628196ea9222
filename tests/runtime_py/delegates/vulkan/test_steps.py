"""Operands that a shader cannot count are refused: its offsets have 32 bits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import vulkan_calls
import vulkan_here

from kvc.runtime.delegates.vulkan import steps as steps_module
from kvc.runtime.delegates.vulkan.indexing import FRESH, UPDATES
from kvc.runtime.delegates.vulkan.steps import Steps
from kvc.runtime.memory.arrays import Array
from kvc.schema.dtypes import DType
from kvc.schema.errors import KernelFailed
from kvc.schema.graph import Alias, Caller, Graph, Instruction, Ref, Value
from kvc.schema.types import TensorType

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


def test_a_result_that_is_too_large_to_copy_names_what_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = TensorType(DType.FLOAT32, (8,))
    graph = Graph(
        values=(Value(kind, Caller()), Value(kind, Alias(0))),
        inputs=(0,),
        outputs=(1,),
        instructions=(Instruction("aten::view", (Ref(0), (8,)), (1,), "m:7"),),
        scratch_nbytes=0,
        peak_nbytes=0,
    )
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    vulkan_calls.run(vulkan_here.device(), graph, [x], [y])
    assert y.tolist() == x.tolist()
    monkeypatch.setattr(steps_module, "_MOST", 4)
    with pytest.raises(KernelFailed, match="instruction 0, aten::view at m:7"):
        vulkan_calls.run(vulkan_here.device(), graph, [x], [y])
    bare = replace(graph, values=graph.values[:1], outputs=(0,), instructions=())
    with pytest.raises(KernelFailed, match="kvc::delegate"):
        vulkan_calls.run(vulkan_here.device(), bare, [x], [y])
