"""What the backend `ethosu` takes, and its words for what it does not."""

import math

import pytest

from kvc.schema.backends.ethosu import (
    ATTENTION,
    CACHE_UPDATE,
    ROTARY,
    why_not,
    why_not_u55,
)
from kvc.schema.backends.operands import Operand
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType


def of(*dims: int, dtype: DType = DType.FLOAT32, constant: bool = False) -> Operand:
    return Operand(TensorType(dtype, dims), constant)


ONE = of(1, dtype=DType.INT64)
Q, CACHE, ROWS = of(1, 4, 3, 8), of(1, 2, 16, 8), of(1, 2, 3, 8)
ANGLES, X, WEIGHT = of(3, 4), of(1, 3, 8), of(8, constant=True)
TAKEN = {
    CACHE_UPDATE: [CACHE, ROWS, ONE, -2, "linear", None, 0],
    ATTENTION: [
        Q, CACHE, CACHE, ONE, None, True, None, None, None, None, None, None,
        "linear", None, None, None, 0,
    ],
    "aten::rms_norm": [X, (8,), WEIGHT, 1e-5],
    ROTARY: [Q, ANGLES, ANGLES],
}  # fmt: skip
LEFT = [
    (CACHE_UPDATE, 0, of(2, 2, 16, 8), "axis -2 of a cache"),
    (CACHE_UPDATE, 2, None, "a position that is fixed"),
    (CACHE_UPDATE, 2, of(1, dtype=DType.INT64, constant=True), "that is fixed"),
    (CACHE_UPDATE, 2, of(2, dtype=DType.INT64), "not one of one row"),
    (CACHE_UPDATE, 2, of(1), "not one of one row"),
    (CACHE_UPDATE, 3, 1, "axis 1 of a cache"),
    (CACHE_UPDATE, 4, "circular", "a ring"),
    (CACHE_UPDATE, 5, ONE, "only tensors that are float32 in the model"),
    (CACHE_UPDATE, 6, 2, "a ring"),
    (ATTENTION, 0, of(2, 4, 3, 8), "attention of"),
    (ATTENTION, 0, of(1, 3, 3, 8), "3 heads of 2"),
    (ATTENTION, 2, of(1, 2, 1 << 16, 8), "a cache of 65536 positions"),
    (ATTENTION, 4, -0.5, "scores multiplied by -0.5"),
    (ATTENTION, 4, math.nan, "scores multiplied by nan"),
    (ATTENTION, 4, math.inf, "scores multiplied by inf"),
    (ATTENTION, 5, False, "not causal"),
    (ATTENTION, 6, 4, "a window"),
    (ATTENTION, 8, 30.0, "a window, a cap"),
    (ATTENTION, 9, of(1, 1, 3, 16), "a mask"),
    (ATTENTION, 12, "circular", "over a ring"),
    (ATTENTION, 16, 1, "a window"),
    ("aten::rms_norm", 1, (3, 8), "a norm over"),
    ("aten::rms_norm", 2, of(8), "that is computed"),
    ("aten::rms_norm", 3, -1e-5, "an epsilon of -1e-05"),
    ("aten::rms_norm", 3, 1e300, "an epsilon of 1e+300"),
    (ROTARY, 2, of(3, 8), "angles"),
]
RESULTS = [X.type]


@pytest.mark.parametrize("op", TAKEN)
def test_what_a_decoder_block_needs_is_taken(op: str):
    assert why_not(op, TAKEN[op], RESULTS) == ""


@pytest.mark.parametrize(("op", "place", "other", "words"), LEFT)
def test_other_forms_are_left_with_a_reason(op: str, place: int, other, words: str):
    arguments = list(TAKEN[op])
    arguments[place] = other
    assert words in why_not(op, arguments, RESULTS)


def test_u55_has_reasons_of_its_own():
    assert "has no SCATTER" in why_not_u55(CACHE_UPDATE, TAKEN[CACHE_UPDATE], RESULTS)
    assert "no MATMUL of int16" in why_not_u55(ATTENTION, TAKEN[ATTENTION], RESULTS)
    assert why_not_u55(ROTARY, TAKEN[ROTARY], RESULTS) == ""
