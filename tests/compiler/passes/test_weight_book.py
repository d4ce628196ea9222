"""What a recipe keeps float32, and what is kept in any case."""

import pytest
import torch
from ir_samples import I64, constant, method, node, program, value

from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.quantize_weights import QuantizeWeights
from kvc.compiler.passes.store_bfloat16 import StoreBfloat16
from kvc.compiler.passes.weight_book import kept_weights, matches
from kvc.schema.errors import UnmatchedPattern

X, CHOSEN = value(0, 3, 8), value(1, 3, 2, dtype=I64)
GATE, UP, BIG = value(2, 4, 8), value(3, 8, 8), value(4, 4, 8, 8)
SCORES, BEST, EXPERTS = value(5, 3, 4), value(6, 3, 2), value(7, 6, dtype=I64)
STATES, ROWS, OUT = value(8, 3, 8), value(9, 6, 8), value(10, 6, 8)
NAMES = ("layers.0.mlp.gate.weight", "layers.0.proj.weight", "layers.0.mlp.experts.up")


def routed():
    """Return a program whose second layer's rows go to experts that the first chose."""
    step = method(
        node("aten::linear", X, UP, None, to=STATES),
        node("aten::linear", STATES, GATE, None, to=SCORES),
        node("aten::topk", SCORES, 2, -1, True, True, to=(BEST, CHOSEN)),
        node("aten::view", CHOSEN, (6,), to=EXPERTS),
        node("kvc::expert_linear", ROWS, BIG, EXPERTS, None, False, to=OUT),
        inputs=(X, ROWS),
        outputs=(OUT,),
        constants=tuple(zip((GATE, UP, BIG), NAMES, strict=True)),
    )
    sizes = ((4, 8), (8, 8), (4, 8, 8))
    constants = tuple(
        constant(name, torch.ones(*dims))
        for name, dims in zip(NAMES, sizes, strict=True)
    )
    return program(step, constants=constants)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("mlp.experts", True),
        ("layers.0", True),
        ("layers.*.mlp", True),
        ("layers.0.mlp.experts.up", True),
        ("exp*", True),
        ("mlp.up", False),
        ("expert", False),
        ("layers.0.mlp.experts.up.weight", False),
        ("*.layers", False),
    ],
)
def test_a_pattern_is_of_parts_that_follow_one_another(pattern, found):
    assert matches(pattern, "layers.0.mlp.experts.up") is found


def test_the_matrix_that_chooses_experts_is_kept_and_no_other():
    assert kept_weights(routed(), ()) == {NAMES[0]}


@pytest.mark.parametrize(
    "stored",
    [QuantizeWeights("qd8", False, ("experts",)), StoreBfloat16(("experts",))],
    ids=["int8", "bfloat16"],
)
def test_weights_that_are_kept_are_read_as_they_are(stored):
    after = stored.run(routed())
    derived = [c.name for c in after.constants if c.name not in NAMES]
    assert derived
    assert all(name.startswith(NAMES[1]) for name in derived)
    verify(after)


def test_all_else_is_stored_in_another_form():
    after = QuantizeWeights("qd8", False).run(routed())
    ops = [made.op for made in after.methods[0].nodes]
    assert ops.count("kvc::linear_qd8") == ops.count("aten::linear") == 1
    assert "kvc::expert_linear_qd8" in ops


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(UnmatchedPattern, match=r"'mlp.expert' matches no matrix"):
        kept_weights(routed(), ("proj", "mlp.expert"))
