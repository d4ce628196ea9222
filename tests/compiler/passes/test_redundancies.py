# ruff: noqa: E501  a table reads best with one line a case
from dataclasses import replace

import pytest
import torch
from golden import assert_golden
from interpreter import interpret
from ir_samples import CACHE, I64, method, node, program, value

from kvc.compiler.ir.text import program_text
from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.redundancies import DropIdleWrites

OLD, NEW = value(0, *CACHE), value(9, *CACHE)
INDEX, ROWS = value(1, 2, dtype=I64), value(2, 1, 2, 4)
COUNT = node("aten::arange.start_step", 2, 4, 1, I64, to=INDEX)
SLICE = node("aten::slice.Tensor", OLD, 1, 2, 4, 1, to=ROWS)
STORE = node("aten::index_copy", OLD, 1, INDEX, ROWS, to=NEW)


def storing(*nodes, inputs=()):
    made = method(
        *nodes,
        inputs=inputs,
        state_in=((OLD, "k"),),
        state_out=((NEW, "k"),),
        outputs=(NEW,),
    )
    return program(made, states=("k",))


def test_before_and_after_are_as_agreed():
    """`k[:, p:p + 2] += x`, as it is imported."""
    place, index, other = (value(n, dtype=I64) for n in (3, 4, 5))
    index, other = value(4, 2, dtype=I64), value(5, 2, dtype=I64)
    zero = value(6, 2, dtype=I64)
    sums, read = value(7, 1, 2, 4), value(8, 1, 2, 4)
    written = value(10, *CACHE)
    before = storing(
        node("aten::arange.start_step", 0, 2, 1, I64, to=zero),
        node("aten::add.Tensor", zero, place, 1, to=index),
        node("aten::index_select", OLD, 1, index, to=ROWS),
        node("aten::exp", ROWS, to=sums),
        node("aten::index_copy", OLD, 1, index, sums, to=written),
        node("aten::add.Tensor", zero, place, 1, to=other),
        node("aten::index_select", written, 1, other, to=read),
        node("aten::index_copy", written, 1, other, read, to=NEW),
        inputs=(place,),
    )
    verify(before)
    after = DropIdleWrites().run(before)
    verify(after)
    text = f"# before\n{program_text(before)}\n# after\n{program_text(after)}"
    assert_golden("pass_drop_idle_writes", text)
    assert program_text(DropIdleWrites().run(after)) == program_text(after)
    given, states = [torch.tensor(5)], {"k": torch.rand(CACHE)}
    expected = interpret(before.methods[0], given, states)
    got = interpret(after.methods[0], given, states)
    assert torch.equal(got[1]["k"], expected[1]["k"])


ROW = value(3, 1, 4)
LAST = node("aten::arange.start_step", 7, 8, 1, I64, to=value(4, 1, dtype=I64))


@pytest.mark.parametrize(
    "nodes",
    [
        (COUNT, SLICE, STORE),
        (COUNT, replace(SLICE, arguments=(OLD, -2, -6, -4, 1)), STORE),
        (COUNT, node("aten::index_select", OLD, 1, INDEX, to=ROWS), STORE),
        (COUNT, node("aten::split_with_sizes", OLD, (2, 2, 4), 1, to=(value(5, 1, 2, 4), ROWS, value(6, 1, 4, 4))), STORE),
        (LAST, node("aten::select.int", OLD, 1, -1, to=ROW), node("aten::unsqueeze", ROW, 1, to=value(5, 1, 1, 4)), node("aten::index_copy", OLD, 1, LAST.outputs[0], value(5, 1, 1, 4), to=NEW)),
    ],
)  # fmt: skip
def test_a_write_of_what_is_there_is_dropped(nodes):
    before = storing(*nodes)
    verify(before)
    (after,) = DropIdleWrites().run(before).methods
    assert after.outputs == (OLD,)


@pytest.mark.parametrize(
    "nodes",
    [
        # other places
        (COUNT, replace(SLICE, arguments=(OLD, 1, 3, 5, 1)), STORE),
        (COUNT, replace(SLICE, arguments=(OLD, 1, 2, 6, 2)), STORE),
        (COUNT, node("aten::split_with_sizes", OLD, (3, 2, 3), 1, to=(value(5, 1, 3, 4), ROWS, value(6, 1, 3, 4))), STORE),
        # other content
        (COUNT, node("aten::exp", OLD, to=value(5, *CACHE)), replace(SLICE, arguments=(value(5, *CACHE), 1, 2, 4, 1)), STORE),
    ],
)  # fmt: skip
def test_other_writes_stay(nodes):
    before = storing(*nodes)
    verify(before)
    assert program_text(DropIdleWrites().run(before)) == program_text(before)


def test_a_write_that_may_have_to_raise_stays():
    read = node("aten::index_select", OLD, 1, INDEX, to=ROWS)
    before = storing(read, STORE, inputs=(INDEX,))
    verify(before)
    assert program_text(DropIdleWrites().run(before)) == program_text(before)
