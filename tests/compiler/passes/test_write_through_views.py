import pytest
import torch
from golden import assert_golden
from interpreter import interpret
from ir_samples import I64, method, node, program, value

from kvc.compiler.ir.text import program_text
from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.redundancies import DropDeadCode
from kvc.compiler.passes.write_through_views import WriteThroughViews

SHAPE = (2, 8, 3)
OLD, NEW, AT = value(0, *SHAPE), value(9, *SHAPE), value(1, 2, dtype=I64)


def storing(*nodes, rows, at=AT):
    made = method(
        *nodes,
        inputs=(rows, at),
        state_in=((OLD, "k"),),
        state_out=((NEW, "k"),),
        outputs=(NEW,),
    )
    return program(made, states=("k",), shape=SHAPE)


def places(key, start, end, step=1):
    index = value(key, len(range(start, end, step)), dtype=I64)
    return node("aten::arange.start_step", start, end, step, I64, to=index)


def transposed():
    """`k.transpose(1, 2)[:, :, at] = rows`."""
    rows, turned = value(2, 2, 3, 2), value(3, 2, 3, 8)
    written = value(4, 2, 3, 8)
    return storing(
        node("aten::transpose.int", OLD, 1, 2, to=turned),
        node("aten::index_copy", turned, 2, AT, rows, to=written),
        node("aten::transpose.int", written, 1, 2, to=NEW),
        rows=rows,
    )


def permuted():
    """`k.permute(2, 0, 1)[:, :, at] = rows`, with `index_put`."""
    rows, turned = value(2, 3, 2, 2), value(3, 3, 2, 8)
    written = value(4, 3, 2, 8)
    return storing(
        node("aten::permute", OLD, (2, 0, 1), to=turned),
        node("aten::index_put", turned, (None, None, AT), rows, False, to=written),
        node("aten::permute", written, (1, 2, 0), to=NEW),
        rows=rows,
    )


def of_one_row():
    """`k.transpose(1, 2)[:, at] = rows` of a batch of one, whose axis values lack."""
    old, new, rows = value(0, 1, 3, 8), value(9, 1, 3, 8), value(2, 2, 3)
    turned, written = value(3, 1, 8, 3), value(4, 1, 8, 3)
    made = method(
        node("aten::transpose.int", old, 1, 2, to=turned),
        node("aten::index_put", turned, (None, AT), rows, False, to=written),
        node("aten::transpose.int", written, 1, 2, to=new),
        inputs=(rows, AT),
        state_in=((old, "k"),),
        state_out=((new, "k"),),
        outputs=(new,),
    )
    return program(made, states=("k",), shape=(1, 3, 8))


def of_two_axes():
    """`k[1, 2:4] = rows`."""
    rows, part, inner = value(2, 2, 3), value(3, 8, 3), value(4, 8, 3)
    back, first, second = value(5, 1, 8, 3), places(6, 1, 2), places(7, 2, 4)
    return storing(
        first,
        second,
        node("aten::select.int", OLD, 0, 1, to=part),
        node("aten::index_copy", part, 0, second.outputs[0], rows, to=inner),
        node("aten::unsqueeze", inner, 0, to=back),
        node("aten::index_copy", OLD, 0, first.outputs[0], back, to=NEW),
        rows=rows,
    )


def of_the_first_and_last_axis():
    """`k[:1, :, 1:] = rows`."""
    rows, part, inner = value(2, 1, 8, 2), value(3, 1, 8, 3), value(4, 1, 8, 3)
    first, second = places(6, 0, 1), places(7, 1, 3)
    return storing(
        first,
        second,
        node("aten::slice.Tensor", OLD, 0, 0, 1, 1, to=part),
        node("aten::index_copy", part, 2, second.outputs[0], rows, to=inner),
        node("aten::index_copy", OLD, 0, first.outputs[0], inner, to=NEW),
        rows=rows,
    )


CASES = {
    "transposed": (transposed(), "aten::index_copy"),
    "permuted": (permuted(), "aten::index_put"),
    "of_one_row": (of_one_row(), "aten::index_put"),
    "of_two_axes": (of_two_axes(), "aten::index_put"),
    "of_the_first_and_last_axis": (of_the_first_and_last_axis(), "aten::index_put"),
}


def run(before):
    verify(before)
    after = DropDeadCode().run(WriteThroughViews().run(before))
    verify(after)
    return after


def test_before_and_after_are_as_agreed():
    texts = []
    for before, _ in CASES.values():
        after = program_text(run(before))
        texts.append(f"# before\n{program_text(before)}\n# after\n{after}")
    assert_golden("pass_write_through_views", "\n".join(texts))


@pytest.mark.parametrize("name", CASES)
def test_a_second_run_changes_nothing(name):
    after = run(CASES[name][0])
    assert program_text(WriteThroughViews().run(after)) == program_text(after)


@pytest.mark.parametrize("name", CASES)
def test_the_one_write_left_does_what_all_did(name):
    before, op = CASES[name]
    after = run(before)
    (write,) = [n for n in after.methods[0].nodes if n.op.startswith("aten::index")]
    ((old, _),) = before.methods[0].state_in
    assert (write.op, write.inputs[0]) == (op, old)
    rows = torch.rand(before.methods[0].inputs[0].type.dims)
    given, states = [rows, torch.tensor([6, 1])], {"k": torch.rand(old.type.dims)}
    expected = interpret(before.methods[0], given, states)[1]["k"]
    got = interpret(after.methods[0], given, states)[1]["k"]
    assert torch.equal(got, expected)
    assert not torch.equal(got, states["k"])


def test_a_view_of_a_batch_of_one_is_seen_through():
    old, new, at = value(0, 1, 8, 3), value(9, 1, 8, 3), value(1, 2, dtype=I64)
    row, rows, written = value(3, 8, 3), value(2, 2, 3), value(4, 8, 3)
    before = program(
        method(
            node("aten::select.int", old, 0, 0, to=row),
            node("aten::index_copy", row, 0, at, rows, to=written),
            node("aten::view", written, (1, 8, 3), to=new),
            inputs=(rows, at),
            state_in=((old, "k"),),
            state_out=((new, "k"),),
        ),
        states=("k",),
        shape=(1, 8, 3),
    )
    write = run(before).methods[0].nodes[-1]
    assert (write.op, write.arguments[:2]) == ("aten::index_copy", (old, 1))


def test_a_part_at_places_that_may_be_negative_stays():
    """They would raise; `index_put` would count them from the back."""
    rows, part, inner = value(2, 1, 2, 3), value(3, 1, 8, 3), value(4, 1, 8, 3)
    first = places(6, 0, 1)
    before = storing(
        first,
        node("aten::slice.Tensor", OLD, 0, 0, 1, 1, to=part),
        node("aten::index_copy", part, 1, AT, rows, to=inner),
        node("aten::index_copy", OLD, 0, first.outputs[0], inner, to=NEW),
        rows=rows,
    )
    assert program_text(run(before)) == program_text(before)


@pytest.mark.parametrize(
    ("shape", "start"), [((1, 3, 8), 1), ((1, 3, 8), -1), ((2, 3, 8), 0)]
)
def test_a_write_at_another_place_or_of_more_of_them_stays(shape, start):
    old, new, rows = value(0, *shape), value(9, *shape), value(2, 1, 3, 8)
    first = places(8, start, start + 1)
    before = program(
        method(
            first,
            node("aten::index_copy", old, 0, first.outputs[0], rows, to=new),
            inputs=(rows,),
            state_in=((old, "k"),),
            state_out=((new, "k"),),
        ),
        states=("k",),
        shape=shape,
    )
    assert program_text(run(before)) == program_text(before)


@pytest.mark.parametrize("start", [0, 2])
def test_a_part_that_is_written_back_elsewhere_stays(start):
    rows, part, inner = value(2, 1, 2, 3), value(3, 1, 8, 3), value(4, 1, 8, 3)
    first, second = places(6, 1, 2), places(7, start, start + 2)
    before = storing(
        first,
        second,
        node("aten::slice.Tensor", OLD, 0, 0, 1, 1, to=part),
        node("aten::index_copy", part, 1, second.outputs[0], rows, to=inner),
        node("aten::index_copy", OLD, 0, first.outputs[0], inner, to=NEW),
        rows=rows,
    )
    assert program_text(run(before)) == program_text(before)


def test_another_order_than_before_stays():
    cube = (4, 4, 4)
    old, new, rows = value(0, *cube), value(9, *cube), value(2, 2, 4, 4)
    turned, written = value(3, *cube), value(4, *cube)
    before = program(
        method(
            node("aten::permute", old, (1, 2, 0), to=turned),
            node("aten::index_copy", turned, 0, AT, rows, to=written),
            node("aten::permute", written, (1, 2, 0), to=new),
            inputs=(rows, AT),
            state_in=((old, "k"),),
            state_out=((new, "k"),),
        ),
        states=("k",),
        shape=cube,
    )
    assert program_text(run(before)) == program_text(before)
