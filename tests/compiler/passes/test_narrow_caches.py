from dataclasses import replace

import pytest
import torch
from interpreter import interpret
from ir_samples import I64, method, node, program, value

from kvc.compiler.ir import Program
from kvc.compiler.ir.text import program_text
from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.quantize_caches import NarrowCaches
from kvc.schema.dtypes import DType
from kvc.schema.errors import CacheDtypeRefused
from kvc.schema.types import TensorType

LAID = (1, 8, 2, 4)
Q, NEW = value(0, 1, 4, 1, 4), value(1, 1, 1, 2, 4)
START, LENGTH = value(2, 1, dtype=I64), value(3, 1, dtype=I64)
K, K2, SEEN = value(4, *LAID), value(5, *LAID), value(6, 1, 2, 8, 4)
OUT, NEG = value(7, 1, 4, 1, 4), value(8, *LAID)
PLAIN = (None, True, *[None] * 6, "linear", None, None, None, 0)
NODES = (
    node("kvc::cache_update", K, NEW, START, 1, "linear", None, 0, to=K2),
    node("aten::transpose.int", K2, 1, -2, to=SEEN),
    node("kvc::attention", Q, SEEN, SEEN, LENGTH, *PLAIN, to=OUT),
)


def cached(*nodes, **changes) -> Program:
    step = method(
        *nodes,
        inputs=(Q, NEW, START, LENGTH),
        outputs=(OUT,),
        state_in=((K, "k"),),
        state_out=((K2, "k"),),
    )
    kept = program(step, states=("k",), shape=LAID)
    return replace(kept, states=(replace(kept.states[0], **changes),))


def narrowed(before: Program) -> Program:
    after = NarrowCaches().run(before)
    verify(after)
    return after


def test_a_cache_and_all_that_comes_of_it_is_float16():
    after = narrowed(cached(*NODES))
    assert [str(state.type) for state in after.states] == ["float16[1, 8, 2, 4]"]
    write, turn, attend = after.methods[0].nodes
    assert str(write.inputs[1].type) == "float32[1, 1, 2, 4]"
    assert str(turn.outputs[0].type) == "float16[1, 2, 8, 4]"
    assert str(attend.outputs[0].type) == "float32[1, 4, 1, 4]"


def test_a_part_of_each_row_is_float16_too():
    part, out = value(9, 1, 2, 8, 3), value(7, 1, 4, 1, 3)
    cut = node("aten::slice.Tensor", SEEN, -1, 0, 3, 1, to=part)
    attend = node("kvc::attention", Q, SEEN, part, LENGTH, *PLAIN, to=out)
    before = method(
        *NODES[:2],
        cut,
        attend,
        inputs=(Q, NEW, START, LENGTH),
        outputs=(out,),
        state_in=((K, "k"),),
        state_out=((K2, "k"),),
    )
    after = narrowed(program(before, states=("k",), shape=LAID))
    *_, seen, out = after.methods[0].nodes
    assert str(seen.outputs[0].type) == "float16[1, 2, 8, 3]"
    assert str(out.outputs[0].type) == "float32[1, 4, 1, 3]"


def test_a_second_run_changes_nothing():
    after = narrowed(cached(*NODES))
    assert program_text(narrowed(after)) == program_text(after)


def test_numbers_are_those_of_rows_rounded_before_they_are_written():
    before = cached(*NODES)
    states = {"k": torch.zeros(LAID).half()}, {"k": torch.zeros(LAID)}
    after = narrowed(before)
    for start in range(5):
        torch.manual_seed(start)
        q, new = torch.randn(1, 4, 1, 4), torch.randn(1, 1, 2, 4)
        places = torch.tensor([start]), torch.tensor([start + 1])
        rounded = new.half().float()
        (found,), held, _ = interpret(after.methods[0], [q, new, *places], states[0])
        (like,), full, _ = interpret(
            before.methods[0], [q, rounded, *places], states[1]
        )
        states = held, full
        assert held["k"].dtype == torch.float16
        assert torch.equal(held["k"].float(), full["k"])
        torch.testing.assert_close(found, like, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "changes", "text"),
    [
        ((*NODES, node("aten::neg", K, to=NEG)), {}, "aten::neg"),
        (NODES, {"type": TensorType(DType.FLOAT64, LAID)}, "it is float64"),
    ],
)
def test_a_cache_of_another_use_or_dtype_is_refused(nodes, changes, text: str):
    with pytest.raises(CacheDtypeRefused) as caught:
        NarrowCaches().run(cached(*nodes, **changes))
    assert text in str(caught.value)
