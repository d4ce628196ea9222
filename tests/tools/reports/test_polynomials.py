from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType, affine
from kvc.tools.reports.polynomials import formula, nbytes_of

SEQ, BATCH = affine(0, {"seq": 1}), affine(0, {"batch": 1})


def text(*shapes):
    return formula(nbytes_of(TensorType(DType.FLOAT32, dims) for dims in shapes))


def test_bytes_as_a_formula():
    assert text((2, 3)) == "24"
    assert text((SEQ, 3), (5,)) == "12*seq + 20"
    assert text((BATCH, SEQ, 2), (SEQ, 1)) == "8*batch*seq + 4*seq"
    assert text((affine(-1, {"seq": 2}), SEQ)) == "8*seq*seq - 4*seq"
    assert text((affine(0, {"seq": 1}, {("batch", "seq"): 2}), 2)) == (
        "16*batch*seq + 8*seq"
    )
    assert text() == "0"
