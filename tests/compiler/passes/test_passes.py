"""Each pass: a golden of before and after; a second run changes nothing."""

import pytest
import torch
from golden import assert_golden, golden_parts
from ir_samples import CACHE, F32, constant, program

from kvc.compiler.ir import State
from kvc.compiler.ir.reading import read_program
from kvc.compiler.ir.text import program_text
from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.convolutions import EndConvolutions, FoldBatchNorms
from kvc.compiler.passes.fusions import FuseGlus, FuseRmsNorms, FuseRotaryEmbeddings
from kvc.compiler.passes.materialize_views import MaterializeViews
from kvc.compiler.passes.matrix_products import (
    DivideMatrices,
    GatherProducts,
    LinearProducts,
)
from kvc.compiler.passes.quantize_convolutions import QuantizeConvolutions
from kvc.compiler.passes.quantize_weights import QuantizeWeights
from kvc.compiler.passes.redundancies import (
    DedupeConstants,
    DropDeadCode,
    ForwardCopies,
    ShareEqualNodes,
)
from kvc.compiler.passes.rotate_streams import RotateStreams
from kvc.compiler.passes.select_early import SelectEarly
from kvc.compiler.passes.store_bfloat16 import StoreBfloat16
from kvc.compiler.weights.sources import TensorSource
from kvc.schema.types import TensorType

ONE, WEIGHTS = torch.tensor([1.0, 2.0]), {"w": torch.ones(4, 4), "b": torch.ones(4)}
WEIGHTS["embed"] = torch.ones(8, 4)
WIDE = {"wide": torch.ones(8, 64), "few": torch.ones(4, 64), "odd": torch.ones(4, 48)}
WIDE["embed"] = torch.ones(8, 64)
NAMES = ("w", "tied", "literal.0", "literal.1", "equal_but_another")
EQUAL = dict.fromkeys(("w", "tied"), ONE) | {name: ONE.clone() for name in NAMES[2:]}
HALVES = {name: ONE.bfloat16() for name in ("half.0", "half.1")}
STREAM = {
    "table": torch.ones(128, 16),
    "norm": torch.ones(16),
    "up": torch.ones(32, 16),
}
STREAM |= {"down": torch.ones(16, 32), "down_bias": torch.ones(16)}
STREAM |= {"last": torch.ones(16), "last_bias": torch.ones(16)}
CONV = {"conv.weight": torch.ones(2, 2, 1), "conv.bias": torch.ones(2)}
NORMED = {"conv.weight": torch.ones(4, 2, 3)}
NORMED |= {f"norm.{name}": torch.ones(4) for name in ("weight", "bias")}
NORMED |= {
    f"{norm}.running_{name}": torch.ones(4)
    for norm in ("norm", "other")
    for name in ("mean", "var")
}
KERNELS = {"plain": torch.ones(4, 11, 3), "turned": torch.ones(9, 2, 5)}
KERNELS |= {"single": torch.ones(6, 40, 1), "planes": torch.ones(6, 1, 64)}
KERNELS |= {"few": torch.ones(4, 31, 1), "bias": torch.ones(4)}
# Golden file -> the pass, and the constants of the program before it.
CASES = {
    "forward_copies": (ForwardCopies(), {}),
    "drop_dead_code": (DropDeadCode(), {"unused": torch.ones(4, 4)}),
    "dedupe_constants": (DedupeConstants(), EQUAL | HALVES),
    "divide_matrices": (
        DivideMatrices(),
        {"w": torch.ones(6, 4), "other": torch.ones(6, 4)},
    ),
    "fuse_rms_norms": (FuseRmsNorms(), {"w": torch.ones(4)}),
    "fuse_glus": (FuseGlus(), {}),
    "fuse_rotary_embeddings": (FuseRotaryEmbeddings(), {}),
    "linear_products": (
        LinearProducts(),
        {name: torch.ones(4, 6) for name in ("w", "read", "table", "other", "turned")},
    ),
    "rotate_streams": (RotateStreams(), STREAM),
    "select_early": (SelectEarly(), {}),
    "share_equal_nodes": (ShareEqualNodes(), {}),
    "gather_products": (
        GatherProducts(),
        {"wide": torch.ones(8, 4, dtype=torch.int8), "scale": torch.ones(8)},
    ),
    "fold_batch_norms": (FoldBatchNorms(), NORMED),
    "end_convolutions": (EndConvolutions(), CONV),
    "materialize_views": (MaterializeViews(), {}),
    "quantize_convolutions": (QuantizeConvolutions(), KERNELS),
    "quantize_weights": (QuantizeWeights("qd8", True), WEIGHTS),
    "quantize_weights_alone": (QuantizeWeights("w8", True), WEIGHTS),
    "quantize_weights_int4": (QuantizeWeights("qb4", True), WIDE),
    "quantize_weights_blocks": (QuantizeWeights("q8", True), WEIGHTS),
    "quantize_weights_int4_blocks": (QuantizeWeights("q4", True), WIDE),
    "store_bfloat16": (StoreBfloat16(), WEIGHTS),
}


def program_before(name):
    """Return the program that a golden file begins with."""
    text, _ = golden_parts(f"pass_{name}")
    return read_program(text, {n: TensorSource(t) for n, t in CASES[name][1].items()})


@pytest.mark.parametrize("name", CASES)
def test_a_text_becomes_the_one_below_it(name):
    before = program_before(name)
    verify(before)
    after = program_text(CASES[name][0].run(before))
    text = f"# before\n{program_text(before)}\n# after\n{after}"
    assert_golden(f"pass_{name}", text)


@pytest.mark.parametrize("name", CASES)
def test_a_second_run_changes_nothing(name):
    one = CASES[name][0]
    after = one.run(program_before(name))
    assert program_text(one.run(after)) == program_text(after)


def test_rows_in_no_whole_blocks_or_eights_and_tied_embeddings_stay_int8():
    after = QuantizeWeights("qb4", embedding=True).run(
        program_before("quantize_weights_int4")
    )
    read = {
        n.op: [name for v, name in after.methods[0].constants if v in n.inputs]
        for n in after.methods[0].nodes
    }
    linears = [n for n in after.methods[0].nodes if "linear" in n.op]
    assert [n.op for n in linears] == [
        "kvc::linear_qb4",
        "kvc::linear_qd8",
        "kvc::linear_qd8",
        "kvc::linear_qd8",
    ]
    names = {v.id: name for v, name in after.methods[0].constants}
    stored = [names[n.inputs[3].id] for n in linears]
    assert stored == ["wide.int4", "odd.int8", "embed.int8", "few.int8"]
    assert read["kvc::embedding_q8"] == ["embed.int8", "embed.int8_scale"]


def test_a_float_embedding_does_not_keep_the_output_layer_from_int4():
    after = QuantizeWeights("qb4", embedding=False).run(
        program_before("quantize_weights_int4")
    )
    ops = [n.op for n in after.methods[0].nodes]
    assert ops.count("kvc::linear_qb4") == 2
    assert "aten::embedding" in ops


def test_int4_constants_have_the_types_of_their_bytes():
    after = QuantizeWeights("qb4", embedding=True).run(
        program_before("quantize_weights_int4")
    )
    types = {c.name: str(c.type) for c in after.constants}
    assert types["wide.int4"] == "uint8[1, 8, 8, 4]"
    assert types["wide.int4_scale"] == "bfloat16[1, 2, 8]"
    assert "embed.int4" not in types


def test_int8_constants_have_a_scale_for_each_block():
    before = program_before("quantize_weights_int4")
    wide = QuantizeWeights("q8", embedding=True).run(before)
    types = {c.name: str(c.type) for c in wide.constants}
    assert types["embed.int8_blocks"] == "int8[8, 64]"
    assert types["embed.int8_blocks_scale"] == "float32[8, 1]"
    by_eights = QuantizeWeights("q4", embedding=True).run(before)
    assert {"wide.int4_signed", "odd.int8_blocks"} <= {
        c.name for c in by_eights.constants
    }


def test_linears_alone_may_be_quantized():
    after = QuantizeWeights(linear="qd8", embedding=False).run(
        program_before("quantize_weights")
    )
    ops = [n.op for n in after.methods[0].nodes]
    assert "aten::embedding" in ops
    assert "kvc::linear_qd8" in ops


def test_a_tied_table_is_quantized_once():
    after = QuantizeWeights(linear="qd8", embedding=True).run(
        program_before("quantize_weights")
    )
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
