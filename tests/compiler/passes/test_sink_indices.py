"""Places that are computed outside of a branch are computed in it."""

from dataclasses import replace

from ir_samples import I64, method, node, program, value

from kvc.compiler.ir.control import control_of
from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.sink_indices import SinkIndices
from kvc.schema.dtypes import DType
from kvc.schema.ops import COND

P = value(0, dtype=DType.BOOL)
CACHE, ROWS = value(1, 1, 8, 4), value(2, 1, 3, 4)
START, COUNT, PLACES = (value(k, n, dtype=I64) for k, n in ((3, 1), (4, 3), (5, 3)))


def blocks():
    """Return a branch that writes rows at places, and one that does not."""
    c, at, x = value(0, 1, 8, 4), value(1, 3, dtype=I64), value(2, 1, 3, 4)
    y = value(3, 1, 8, 4)
    write = node("aten::index_copy", c, 1, at, x, to=y)
    made = (
        method(write, inputs=(c, at, x), outputs=(y,)),
        method(inputs=(c, at, x), outputs=(c,)),
    )
    return [replace(b, name=f"step/{k}", block=k) for k, b in enumerate(made)]


def branching(places, *before):
    """Return a program whose branches take places."""
    result = value(9, 1, 8, 4)
    operands = (CACHE, places, ROWS)
    cond = node(COND, P, 0, 1, operands, (None,), to=result)
    inputs = (P, CACHE, ROWS, START)
    return program(method(*before, cond, inputs=inputs, outputs=(result,)), *blocks())


COUNTED = node("aten::arange.start_step", 0, 3, 1, I64, to=COUNT)
ADDED = node("aten::add.Tensor", START, COUNT, 1, to=PLACES)


def test_a_start_is_passed_instead_of_all_places():
    done = SinkIndices().run(branching(PLACES, COUNTED, ADDED))
    verify(done)
    step, writes, leaves = done.methods
    control = control_of(step.nodes[-1])
    assert control.operands == (CACHE, ROWS, START)
    assert [n.op for n in writes.nodes] == [
        "aten::arange.start_step", "aten::add.Tensor", "aten::index_copy"
    ]  # fmt: skip
    assert writes.nodes[1].inputs[0] == writes.inputs[-1]
    assert writes.nodes[2].inputs[1] == writes.nodes[1].outputs[0]
    assert [v.type for v in leaves.inputs] == [v.type for v in writes.inputs]


def test_a_second_run_changes_nothing():
    once = SinkIndices().run(branching(PLACES, COUNTED, ADDED))
    assert SinkIndices().run(once) == once


def test_other_places_are_passed_as_they_are():
    doubled = node("aten::mul.Tensor", COUNT, COUNT, to=PLACES)
    whole = branching(PLACES, COUNTED, doubled)
    assert SinkIndices().run(whole) == whole
    given = branching(PLACES)
    step = replace(given.methods[0], inputs=(*given.methods[0].inputs, PLACES),
                   input_names=(*given.methods[0].input_names, "at"))  # fmt: skip
    given = replace(given, methods=(step, *given.methods[1:]))
    assert SinkIndices().run(given) == given
