"""Each pass: a golden of before and after; a second run changes nothing."""

import pytest
import torch
from golden import assert_golden
from ir_samples import CACHE, F32, I64, constant, method, node, program, value

from kvc.compiler.ir import State
from kvc.compiler.ir.text import program_text
from kvc.compiler.passes.dedupe_constants import DedupeConstants
from kvc.compiler.passes.drop_dead_code import DropDeadCode
from kvc.compiler.passes.forward_copies import ForwardCopies
from kvc.compiler.passes.fuse_rms_norms import FuseRmsNorms
from kvc.compiler.passes.materialize_views import MaterializeViews
from kvc.compiler.passes.quantize_weights import QuantizeWeights
from kvc.compiler.passes.share_equal_nodes import ShareEqualNodes
from kvc.compiler.passes.store_bfloat16 import StoreBfloat16
from kvc.schema.types import Affine, Symbol, TensorType

SEQ = Affine(0, (("seq", 1),))
SYMBOLS = (Symbol("seq", 1, 8),)
X, OLD, TOO = value(0, *CACHE), value(1, *CACHE), value(2, *CACHE)
A, B, C = value(3, *CACHE), value(4, *CACHE), value(5, *CACHE)
WEIGHT, TABLE = torch.ones(4, 4), torch.ones(8, 4)


def forward_copies():
    return program(
        method(
            node("aten::clone", OLD, to=A),
            node("aten::clone", X, to=B),
            node("aten::copy", OLD, B, to=C),
            node("aten::add.Tensor", A, C, 1, to=value(6, *CACHE)),
            node("aten::copy", OLD, value(7, 4), to=value(8, *CACHE)),
            inputs=(X, value(7, 4)),
            state_in=((OLD, "k"),),
            state_out=((C, "k"),),
            outputs=(value(6, *CACHE), value(8, *CACHE)),
        ),
        states=("k",),
    )


def drop_dead_code():
    return program(
        method(
            node("aten::neg", X, to=A),
            node("aten::exp", A, to=B),
            node("aten::add.Tensor", A, TOO, 1, to=C),
            inputs=(X, value(7, 4)),
            constants=((value(8, 4, 4), "unused"),),
            state_in=((OLD, "k"), (TOO, "read_only")),
            state_out=((OLD, "k"),),
            outputs=(C,),
        ),
        constants=(constant("unused", WEIGHT),),
        states=("k", "read_only", "never_used"),
    )


def dedupe_constants():
    one = torch.tensor([1.0, 2.0])
    names = ("w", "tied", "literal.0", "literal.1")
    bound = tuple((value(i, 2), name) for i, name in enumerate(names))
    return program(
        method(
            *(node("aten::neg", v, to=value(10 + v.id, 2)) for v, _ in bound),
            constants=bound,
            outputs=(value(1, 2), *(value(10 + i, 2) for i in range(4))),
        ),
        method(
            node("aten::neg", value(0, 2), to=value(1, 2)),
            constants=((value(0, 2), "literal.1"),),
            outputs=(value(1, 2),),
            name="again",
        ),
        constants=(
            constant("w", one),
            constant("tied", one),
            constant("literal.0", one.clone(), "literal"),
            constant("literal.1", one.clone(), "literal"),
            constant("half.0", one.bfloat16(), "literal"),
            constant("half.1", one.bfloat16(), "literal"),
            constant("equal_but_another", one.clone()),
        ),
    )


def spelled_out_norm(x, eps, first):
    """Return the nodes of a norm; `first` is the id of their first value."""
    square, mean = value(first, 2, 4), value(first + 1, 2, 1)
    total, root = value(first + 2, 2, 1), value(first + 3, 2, 1)
    return (
        node("aten::pow.Tensor_Scalar", x, 2, to=square),
        node("aten::mean.dim", square, (-1,), True, to=mean),
        node("aten::add.Scalar", mean, eps, 1, to=total),
        node("aten::rsqrt", total, to=root),
        node("aten::mul.Tensor", x, root, to=value(first + 4, 2, 4)),
    )


def fuse_rms_norms():
    """Weighted, without a weight, read twice, and one over another axis."""
    x, weight, given = value(0, 2, 4), value(1, 4), value(2, 4)
    n, m, twice, other = (value(i, 2, 4) for i in (14, 24, 34, 44))
    results = [value(i, 2, 4) for i in range(50, 54)]
    return program(
        method(
            *spelled_out_norm(x, 1e-6, 10),
            node("aten::mul.Tensor", weight, n, to=results[0]),
            *spelled_out_norm(x, 1e-5, 20),
            node("aten::mul.Tensor", m, given, to=results[1]),
            *spelled_out_norm(x, 1e-4, 30),
            node("aten::mul.Tensor", twice, weight, to=results[2]),
            *other_axis(x),
            node("aten::mul.Tensor", other, weight, to=results[3]),
            inputs=(x, given),
            constants=((weight, "w"),),
            outputs=(*results, twice),
        ),
        constants=(constant("w", torch.ones(4)),),
    )


def other_axis(x):
    square, mean = value(40, 2, 4), value(41, 1, 4)
    total, root = value(42, 1, 4), value(43, 1, 4)
    return (
        node("aten::pow.Tensor_Scalar", x, 2, to=square),
        node("aten::mean.dim", square, (0,), True, to=mean),
        node("aten::add.Scalar", mean, 1e-6, 1, to=total),
        node("aten::rsqrt", total, to=root),
        node("aten::mul.Tensor", x, root, to=value(44, 2, 4)),
    )


def share_equal_nodes():
    return program(
        method(
            node("aten::add.Scalar", X, 1, 1, to=A),
            node("aten::add.Scalar", X, 1, 1, to=B),
            node("aten::add.Scalar", X, 1.0, 1, to=C),
            node("aten::neg", B, to=value(6, *CACHE)),
            node("aten::neg", A, to=value(7, *CACHE)),
            inputs=(X,),
            outputs=(A, B, C, value(6, *CACHE), value(7, *CACHE)),
        )
    )


def materialize_views():
    x, turned = value(0, SEQ, 2, 4), value(1, 2, SEQ, 4)
    split, merged = value(2, 2, SEQ, 2, 2), value(3, 2, Affine(0, (("seq", 4),)))
    back, flat = value(4, SEQ, 2, 4), value(5, SEQ, 8)
    return program(
        method(
            node("aten::transpose.int", x, 0, 1, to=turned),
            node("aten::view", turned, (2, SEQ, 2, 2), to=split),
            node("aten::view", turned, merged.type.dims, to=merged),
            node("aten::transpose.int", turned, 0, 1, to=back),
            node("aten::view", back, (SEQ, 8), to=flat),
            node("aten::view", flat, merged.type.dims, to=value(6, *merged.type.dims)),
            node("aten::expand", value(7, 1, 4), (3, 4), to=value(8, 3, 4)),
            node("aten::view", value(8, 3, 4), (12,), to=value(9, 12)),
            inputs=(x, value(7, 1, 4)),
            outputs=(split, merged, flat, value(6, *merged.type.dims), value(9, 12)),
        ),
        symbols=SYMBOLS,
    )


def linear_and_embedding():
    ids, rows, bias = value(0, SEQ, dtype=I64), value(1, SEQ, 4), value(2, 4)
    weight, table = value(3, 4, 4), value(4, 8, 4)
    return program(
        method(
            node("aten::embedding", table, ids, to=rows),
            node("aten::linear", rows, weight, bias, to=value(5, SEQ, 4)),
            node("aten::linear", rows, table, None, to=value(6, SEQ, 8)),
            node("aten::linear", rows, value(7, 4, 4), None, to=value(8, SEQ, 4)),
            inputs=(ids, value(7, 4, 4)),
            constants=((weight, "w"), (table, "embed"), (bias, "b")),
            outputs=(value(5, SEQ, 4), value(6, SEQ, 8), value(8, SEQ, 4)),
        ),
        symbols=SYMBOLS,
        constants=(
            constant("w", WEIGHT),
            constant("embed", TABLE),
            constant("b", torch.ones(4)),
        ),
    )


def linears_of_two_widths():
    """A linear of 64 inputs, one of 48, and one tied to an embedding of 64."""
    ids, x, y = value(0, SEQ, dtype=I64), value(1, SEQ, 64), value(2, SEQ, 48)
    wide, odd, table = value(3, 4, 64), value(4, 4, 48), value(5, 8, 64)
    return program(
        method(
            node("aten::embedding", table, ids, to=x),
            node("aten::linear", x, wide, None, to=value(6, SEQ, 4)),
            node("aten::linear", y, odd, None, to=value(7, SEQ, 4)),
            node("aten::linear", x, table, None, to=value(8, SEQ, 8)),
            inputs=(ids, y),
            constants=((wide, "wide"), (odd, "odd"), (table, "embed")),
            outputs=(value(6, SEQ, 4), value(7, SEQ, 4), value(8, SEQ, 8)),
        ),
        symbols=SYMBOLS,
        constants=(
            constant("wide", torch.ones(4, 64)),
            constant("odd", torch.ones(4, 48)),
            constant("embed", torch.ones(8, 64)),
        ),
    )


CASES = {
    "forward_copies": (ForwardCopies(), forward_copies()),
    "drop_dead_code": (DropDeadCode(), drop_dead_code()),
    "dedupe_constants": (DedupeConstants(), dedupe_constants()),
    "fuse_rms_norms": (FuseRmsNorms(), fuse_rms_norms()),
    "share_equal_nodes": (ShareEqualNodes(), share_equal_nodes()),
    "materialize_views": (MaterializeViews(), materialize_views()),
    "quantize_weights": (QuantizeWeights("qd8", True), linear_and_embedding()),
    "quantize_weights_int4": (
        QuantizeWeights("qb4", True),
        linears_of_two_widths(),
    ),
    "store_bfloat16": (StoreBfloat16(), linear_and_embedding()),
}


@pytest.mark.parametrize("name", CASES)
def test_before_and_after_are_as_agreed(name):
    one, before = CASES[name]
    after = one.run(before)
    text = f"# before\n{program_text(before)}\n# after\n{program_text(after)}"
    assert_golden(f"pass_{name}", text)


@pytest.mark.parametrize("name", CASES)
def test_a_second_run_changes_nothing(name):
    one, before = CASES[name]
    after = one.run(before)
    assert program_text(one.run(after)) == program_text(after)


def test_rows_that_are_no_whole_blocks_and_tied_embeddings_stay_int8():
    after = QuantizeWeights("qb4", embedding=True).run(linears_of_two_widths())
    read = {
        n.op: [name for v, name in after.methods[0].constants if v in n.inputs]
        for n in after.methods[0].nodes
    }
    linears = [n for n in after.methods[0].nodes if "linear" in n.op]
    assert [n.op for n in linears] == [
        "kvc::linear_qb4",
        "kvc::linear_qd8",
        "kvc::linear_qd8",
    ]
    names = {v.id: name for v, name in after.methods[0].constants}
    stored = [names[n.inputs[3].id] for n in linears]
    assert stored == ["wide.int4", "odd.int8", "embed.int8"]
    assert read["kvc::embedding_q8"] == ["embed.int8", "embed.int8_scale"]


def test_a_float_embedding_does_not_keep_the_output_layer_from_int4():
    after = QuantizeWeights("qb4", embedding=False).run(linears_of_two_widths())
    ops = [n.op for n in after.methods[0].nodes]
    assert ops.count("kvc::linear_qb4") == 2
    assert "aten::embedding" in ops


def test_int4_constants_have_the_types_of_their_bytes():
    after = QuantizeWeights("qb4", embedding=True).run(linears_of_two_widths())
    types = {c.name: str(c.type) for c in after.constants}
    assert types["wide.int4"] == "uint8[4, 32]"
    assert types["wide.int4_scale"] == "bfloat16[4, 2]"
    assert "embed.int4" not in types


def test_linears_alone_may_be_quantized():
    after = QuantizeWeights(linear="qd8", embedding=False).run(linear_and_embedding())
    ops = [n.op for n in after.methods[0].nodes]
    assert "aten::embedding" in ops
    assert "kvc::linear_qd8" in ops


def test_a_tied_table_is_quantized_once():
    after = QuantizeWeights(linear="qd8", embedding=True).run(linear_and_embedding())
    names = [c.name for c in after.constants]
    assert names.count("embed.weight.int8") + names.count("embed.int8") == 1


def test_an_initial_value_is_never_shared_with_a_weight():
    tensor = torch.ones(CACHE)
    before = program(
        constants=(
            constant("w", tensor),
            constant("k.initial", tensor, "initial value"),
        )
    )
    held = State("k", TensorType(F32, CACHE), "k.initial")
    after = DedupeConstants().run(before)
    assert [c.name for c in after.constants] == ["w", held.initial]
