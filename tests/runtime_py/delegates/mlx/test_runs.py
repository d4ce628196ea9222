"""A partition on MLX: what the host checks before anything is written."""

import library_here
import numpy as np
import pytest

from kvc.schema.dtypes import DType
from kvc.schema.errors import CacheOverflow, IndexOutOfRange, KvcError
from kvc.schema.graph import Alias, Caller, Graph, Instruction, Ref, Scratch, Value
from kvc.schema.types import TensorType

INPUTS = (
    (DType.FLOAT32, (1, 1, 4, 2)),  # the cache
    (DType.FLOAT32, (1, 1, 1, 2)),  # its new row
    (DType.INT64, (1,)),  # a position; the row is written two slots after it
    (DType.FLOAT32, (4, 2)),  # a table, and an index of it
    (DType.INT64, (1,)),
)
MADE = (
    (INPUTS[2], Scratch(0, 64)),
    (INPUTS[0], Alias(0)),
    ((DType.FLOAT32, (1, 2)), Scratch(64, 64)),
)
GRAPH = Graph(
    values=(
        *(Value(TensorType(*each), Caller()) for each in INPUTS),
        *(Value(TensorType(*each), storage) for each, storage in MADE),
    ),
    inputs=tuple(range(5)),
    outputs=(6, 7),
    instructions=(
        Instruction("kvc::after", (Ref(2), 2), (5,)),
        Instruction(
            "kvc::cache_update",
            (Ref(0), Ref(1), Ref(5), 2, "linear", None, 0),
            (6,),
        ),
        Instruction("aten::embedding", (Ref(3), Ref(4)), (7,)),
    ),
    scratch_nbytes=128,
    peak_nbytes=128,
)


def computed(start: int, index: int) -> list[np.ndarray]:
    """Return the new content of a cache of zeros, and the row of the table."""
    library_here.need("mlx")
    from kvc.runtime.delegates.mlx.evaluation import Weights
    from kvc.runtime.delegates.mlx.runs import Run

    cache, row = np.zeros((1, 1, 4, 2), np.float32), np.ones((1, 1, 1, 2), np.float32)
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    numbers = [np.array([each]) for each in (start, index)]
    found = np.zeros((1, 2), np.float32)
    run = Run("test", GRAPH, {}, Weights(lambda name: table))
    run.compute((cache, row, numbers[0], table, numbers[1]), (cache, found))()
    return [cache, found]


def test_a_position_that_the_partition_computes_is_where_a_row_is_written():
    cache, found = computed(1, 3)
    assert cache[0, 0, :, 0].tolist() == [0, 0, 0, 1]
    assert found.tolist() == [[6, 7]]


@pytest.mark.parametrize(
    ("given", "kind", "place"),
    [
        ((2, 0), CacheOverflow, "row 0 would write 1 position from 4 on"),
        ((-3, 0), IndexOutOfRange, "instruction 1, kvc::cache_update"),
        ((-1, 4), IndexOutOfRange, "instruction 2, aten::embedding"),
        ((-1, -1), IndexOutOfRange, "instruction 2, aten::embedding"),
        ((2, 4), CacheOverflow, "row 0 would write 1 position from 4 on"),
    ],
)
def test_an_error_names_the_first_instruction_that_fails(
    given: tuple[int, int], kind: type[KvcError], place: str
):
    with pytest.raises(kind, match=place):
        computed(*given)
