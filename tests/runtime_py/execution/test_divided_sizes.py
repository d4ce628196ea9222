"""Sizes that a file gets right where it is verified, and wrong at others in between."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hand_built import F32, I64, program, write_bundle
from stateful_programs import Builder

from kvc.runtime import load
from kvc.schema.dtypes import DType
from kvc.schema.errors import KernelFailed
from kvc.schema.graph import Argument, Ref
from kvc.schema.types import Symbol, TensorType, add_dims, affine, floor_divide

A = affine(0, {"a": 1})
# Alike at 2, 10 and 18, which the verifier tries.
SMALLER, LARGER = floor_divide(A, 8), floor_divide(add_dims(A, 4), 8)
STEPS = [
    ("aten::arange.start_step", (0, LARGER, 1, DType.INT64), I64),
    ("aten::full", ((LARGER,), 1.0, DType.FLOAT32), F32),
    ("aten::constant_pad_nd", (Ref(0), (0, add_dims(LARGER, A, -1)), 0.0), F32),
]


@pytest.mark.parametrize(("op", "arguments", "dtype"), STEPS)
def test_a_result_that_is_larger_than_its_memory_fails_the_call(
    tmp_path: Path, op: str, arguments: Sequence[Argument], dtype: DType
) -> None:
    symbols = {"a": Symbol("a", 2, 18)}
    b = Builder(symbols)
    x = b.scratch(TensorType(F32, (A,)))
    made = b.scratch(TensorType(dtype, (SMALLER,)))
    b.step(op, list(arguments), made)
    built = program([b.method("run", {"x": x}, [made])], symbols=(*symbols.values(),))
    path = write_bundle(tmp_path / "m.kvc", built)
    with load(path) as opened, opened.session() as session:
        assert session.run(np.ones(9, np.float32)).shape == (1,)
        with pytest.raises(KernelFailed, match=r"\[2\].*at a = 12"):
            session.run(np.ones(12, np.float32))
