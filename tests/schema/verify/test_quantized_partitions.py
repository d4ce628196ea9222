"""Hostile partitions with quantized linears: every shape and dtype is checked."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hand_built import F32, method, program

from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Caller, Constant, Graph, Instruction, Ref, Scratch, Value
from kvc.schema.model import Blob, Block, Delegate, MemoryKind
from kvc.schema.types import TensorType
from kvc.schema.verify import verify_program

BF16, I8, I32, U8 = DType.BFLOAT16, DType.INT8, DType.INT32, DType.UINT8
INT8 = TensorType(I8, (8, 64)), TensorType(F32, (8,))


def int4(groups, fours):
    return TensorType(U8, (groups, fours, 8, 4))


def scales(groups, blocks):
    return TensorType(BF16, (groups, blocks, 8))


INT4 = int4(1, 8), scales(1, 2)


def zeros(kind):
    return np.zeros(kind.dims, kind.dtype.numpy)


def built(op, weight, scale, width=64):
    """Return a program of one delegate: a quantized linear of x float32 [2, width]."""
    x, y = TensorType(F32, (2, width)), TensorType(F32, (2, 8))
    trio = (TensorType(I8, x.dims), TensorType(F32, (2, 1)), TensorType(I32, (2, 1)))
    stored = (Value(weight, Constant(0)), Value(scale, Constant(1)))
    rows = tuple(
        Value(kind, Scratch(2048 * (i + 1), kind.nbytes({})))
        for i, kind in enumerate((*trio, y))
    )
    inner = Graph(
        values=(Value(x, Caller()), *stored, *rows),
        inputs=(0,),
        outputs=(6,),
        instructions=(
            Instruction("kvc::quantize_rows", (Ref(0),), (3, 4, 5)),
            Instruction(op, (Ref(3), Ref(4), Ref(5), Ref(1), Ref(2), None), (6,)),
        ),
        scratch_nbytes=10240,
        peak_nbytes=0,
    )
    outer = Graph(
        values=(
            Value(x, Scratch(0, x.nbytes({}))),
            Value(y, Scratch(2048, y.nbytes({}))),
        ),
        inputs=(0,),
        outputs=(1,),
        instructions=(Instruction("kvc::delegate", (0, (Ref(0),), (None,)), (1,)),),
        scratch_nbytes=4096,
        peak_nbytes=0,
    )
    partition = Delegate("xnnpack", 0, 0, b"", (0, 1), MemoryKind.OPAQUE, 10240, 16)
    made, _ = program(
        [method("forward", outer, ["x"], blocks=(Block(inner, ()),))],
        {"weight": zeros(weight), "weight_scale": zeros(scale)},
        delegates=[partition],
    )
    return made


def check(made):
    blobs = tuple(
        Blob(bytes([i] * 32), named.type.nbytes({}), 0, 4096 * i, 64)
        for i, named in enumerate(made.names)
    )
    verify_program(replace(made, blobs=blobs), "m.kvc", thorough=True)


def test_bfloat16_data_has_a_numpy_dtype():
    assert zeros(INT4[1]).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("op", "weight", "scale"),
    [("kvc::linear_qb4", *INT4), ("kvc::linear_qd8", *INT8)],
)
def test_a_quantized_linear_that_fits_passes(op, weight, scale):
    check(built(op, weight, scale))


@pytest.mark.parametrize(
    ("weight", "scale", "width", "text"),
    [
        (int4(1, 4), scales(1, 2), 63, "rows of 32 values"),
        (int4(1, 8), scales(1, 2), 63, "times"),
        (int4(1, 8), scales(1, 4), 64, "rows of 64 values"),
        (int4(1, 8), scales(1, 3), 64, "rows of 64 values"),
        (int4(1, 8), scales(2, 2), 64, "of 8 channels"),
        (int4(1, 8), TensorType(BF16, (16,)), 64, "in / block, 8"),
        (int4(1, 8), TensorType(F32, (1, 2, 8)), 64, "scales float32"),
        (TensorType(I8, (1, 8, 8, 4)), scales(1, 2), 64, "with int8"),
        (TensorType(U8, (8, 32)), scales(1, 2), 64, "in / 8, 8, 4"),
        (int4(1, 16), scales(1, 4), 64, "times"),
        (int4(2, 8), scales(2, 2), 64, "is"),
    ],
)
def test_an_int4_linear_that_does_not_fit_is_refused(weight, scale, width, text):
    with pytest.raises(BadProgram, match=text):
        check(built("kvc::linear_qb4", weight, scale, width))


@pytest.mark.parametrize(
    ("weight", "scale", "text"),
    [
        (TensorType(U8, (8, 64)), INT8[1], "with uint8"),
        (TensorType(I8, (8, 32)), INT8[1], "times"),
        (INT8[0], TensorType(BF16, (8,)), "scales bfloat16"),
        (INT8[0], TensorType(F32, (7,)), "one scale per channel"),
    ],
)
def test_an_int8_linear_that_does_not_fit_is_refused(weight, scale, text):
    with pytest.raises(BadProgram, match=text):
        check(built("kvc::linear_qd8", weight, scale))


def test_int4_data_has_the_type_that_the_program_gives_it():
    made = built("kvc::linear_qb4", *INT4)
    cut = replace(made.names[0], type=TensorType(U8, (8, 32)))
    with pytest.raises(BadProgram, match=r"named data 0 is uint8\[8, 32\]"):
        check(replace(made, names=(cut, made.names[1])))
