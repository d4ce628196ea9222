"""What `qnn` takes on integers, and the grids that a partition says."""

import math
from dataclasses import replace

import pytest
from sample_programs import sample_program

from kvc.schema.backends.grids import Grid, Stored, write_grids
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
)
from kvc.schema.backends.operands import Operand
from kvc.schema.backends.qnn_fixed import (
    LARGEST,
    LEAST,
    MAX_DEPTH,
    RULES,
    Grids,
    read_payload,
    why_not,
    write_payload,
)
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.ops import OPS
from kvc.schema.types import TensorType

GRAPH = sample_program().methods[0].graph
FLOAT = next(i for i, v in enumerate(GRAPH.values) if v.type.dtype is DType.FLOAT32)
MADE = GRAPH.instructions[-1].results[0]
# The same code, as if its last instruction were an attention.
ATTENDS = replace(
    GRAPH,
    instructions=(
        *GRAPH.instructions[:-1],
        replace(GRAPH.instructions[-1], op=ATTENTION),
    ),
)


def tensor(*dims: int, dtype: DType = DType.FLOAT32, constant: bool = False) -> Operand:
    return Operand(TensorType(dtype, dims), constant)


X, S = tensor(2, 4), tensor(4, constant=True)
W = tensor(4, 4, dtype=DType.INT8, constant=True)
DEEP = tensor(4, MAX_DEPTH + 1, dtype=DType.INT8, constant=True)
CACHE, ROWS = tensor(1, 2, 8, 4), tensor(1, 2, 1, 4)
PLACE = tensor(1, dtype=DType.INT64)
HALF = tensor(1, 2, 8, 4, dtype=DType.FLOAT16)


def attending(**changed: object) -> tuple[object, ...]:
    given = dict.fromkeys(param.name for param in OPS[ATTENTION].params)
    plain = {"q": ROWS, "k": CACHE, "v": CACHE, "valid_length": PLACE, "causal": True}
    return tuple({**given, **plain, "layout": "linear", "keep": 0, **changed}.values())


def test_what_it_takes_is_in_the_table_of_operators():
    assert RULES.keys() <= OPS.keys()


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        ("kvc::linear_w8", (X, W, S, None)),
        ("kvc::linear_w8", (X, W, S, S)),
        ("aten::div.Scalar", (X, 3.0)),
        ("kvc::cache_update", (CACHE, ROWS, PLACE, 2, "linear", None, 0)),
        (ATTENTION, attending()),
        (ATTENTION, attending(mask=tensor(1, 1, 1, 8, dtype=DType.BOOL))),
        (
            "aten::scaled_dot_product_attention",
            (ROWS, ROWS, ROWS, None, False, None, 0),
        ),
        ("aten::view", (tensor(2, dtype=DType.INT64), (1, 2))),
    ],
)
def test_it_takes(op: str, arguments: tuple[object, ...]):
    assert why_not(op, arguments, [X.type]) == ""


@pytest.mark.parametrize(
    ("op", "arguments", "reason"),
    [
        ("aten::linear", (X, S, None), "does not run aten::linear on integers"),
        ("aten::div.Scalar", (X, 0.0), "division by 0"),
        ("aten::div.Scalar", (X, 1e9), "no number of float16"),
        ("aten::exp", (X,), "does not run aten::exp on integers"),
        ("aten::silu", (tensor(),), "tensors of 1 to 5 dims"),
        ("kvc::linear_w8", (X, tensor(4, 4, dtype=DType.INT8), S, None), "computed"),
        ("kvc::linear_w8", (X, W, tensor(4), None), "computed"),
        ("kvc::linear_w8", (X, W, S, tensor(4)), "computed"),
        ("kvc::linear_w8", (X, DEEP, S, None), f"more than {MAX_DEPTH} inputs"),
        (
            "kvc::cache_update",
            (HALF, ROWS, PLACE, 2, "linear", None, 0),
            "no cache float16",
        ),
        (ATTENTION, attending(k=HALF, v=HALF), "keys float16"),
        (ATTENTION, attending(mask=tensor(1, 1, 1, 8)), "have no bounds"),
        (ATTENTION, attending(slopes=S), "slopes"),
        (ATTENTION, attending(sinks=S), "attention with sinks"),
        (
            "aten::scaled_dot_product_attention",
            (ROWS, ROWS, ROWS, tensor(1, 1, 1, 1), False, None, False),
            "a mask",
        ),
    ],
)
def test_it_leaves(op: str, arguments: tuple[object, ...], reason: str):
    assert reason in why_not(op, arguments, [X.type])


FINE = Grids({FLOAT: Grid(Stored.UINT16, 0.5, 7)}, {})


def test_a_payload_says_what_was_written():
    assert read_payload(write_payload(FINE), GRAPH, "m", "here") == FINE
    held = Grids({FLOAT: Grid(Stored.UINT16, 2.0)}, {MADE: Grid(Stored.UINT16, 0.5)})
    assert read_payload(write_payload(held), ATTENDS, "m", "here") == held


def of(grid: Grid) -> bytes:
    return write_payload(Grids({FLOAT: grid}, {}))


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"\x01", "1 grids in a payload of 1 bytes"),
        (b"\xff" * 4, "4294967295 grids in a payload of 4 bytes"),
        (write_payload(FINE)[:-1], "1 grids in a payload of"),
        (write_payload(FINE) + b"\0", "1 bytes of grids"),
        (of(Grid(Stored.INT8, 0.5)), "integers of the kind int8"),
        (of(Grid(Stored.UINT8, 0.5)), "integers of the kind uint8"),
        (of(Grid(Stored.INT16, 0.5)), "integers of the kind int16"),
        (of(Grid(Stored.UINT16, LEAST / 2)), "a scale of"),
        (of(Grid(Stored.UINT16, LARGEST * 2)), "a scale of"),
        (of(Grid(Stored.UINT16, 0.0)), "a scale of 0.0"),
        (of(Grid(Stored.UINT16, -0.5)), "a scale of -0.5"),
        (of(Grid(Stored.UINT16, math.nan)), "a scale of nan"),
        (of(Grid(Stored.UINT16, math.inf)), "a scale of inf"),
        (of(Grid(Stored.UINT16, 0.5, -1)), "a zero at -1"),
        (of(Grid(Stored.UINT16, 0.5, 65536)), "a zero at 65536"),
        (
            b"\0\0\0\0" + write_grids({FLOAT: Grid(Stored.UINT16, 0.5)}),
            r"scores of values \[\d+\]; those of attention are \[\]",
        ),
    ],
)
def test_grids_that_the_device_cannot_have_are_refused(raw: bytes, what: str):
    with pytest.raises(BadProgram, match=what):
        read_payload(raw, GRAPH, "m", "here")


@pytest.mark.parametrize(
    ("scores", "what"),
    [
        ({}, "scores of values"),
        ({MADE: Grid(Stored.INT16, 0.5)}, "integers of the kind int16"),
        ({MADE: Grid(Stored.UINT16, LEAST / 2)}, "a scale of"),
    ],
)
def test_an_attention_has_scores_of_uint16(scores: dict[int, Grid], what: str):
    with pytest.raises(BadProgram, match=what):
        read_payload(write_payload(Grids(FINE.values, scores)), ATTENDS, "m", "here")
