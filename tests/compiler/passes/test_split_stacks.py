from dataclasses import replace

import pytest
import torch
from golden import assert_golden
from interpreter import interpret
from ir_samples import I64, method, node, program, value

from kvc.compiler.ir.text import program_text
from kvc.compiler.ir.verify import verify
from kvc.compiler.passes.split_stacks import SplitStacks

AT6 = value(7, 1, dtype=I64)
LAYERS, PART = 3, (1, 2, 8, 4)
SHAPE = (LAYERS, *PART)
STACK, NEW, AT = value(0, *SHAPE), value(1, 1, 2, 1, 4), value(2, 1, dtype=I64)


def written(layer, old, first, index=AT):
    """Return nodes that write a token into a part, ids from `first` on."""
    part, changed = value(first, *PART), value(first + 1, *PART)
    place, row = value(first + 2, 1, dtype=I64), value(first + 3, 1, *PART)
    whole = value(first + 4, *SHAPE)
    return (
        node("aten::select.int", old, 0, layer, to=part),
        node("aten::index_copy", part, 2, index, NEW, to=changed),
        node("aten::arange.start_step", layer, layer + 1, 1, I64, to=place),
        node("aten::view", changed, row.type.dims, to=row),
        node("aten::index_copy", old, 0, place, row, to=whole),
    )


def stacked(*nodes, becomes, outputs=()):
    made = method(
        *nodes,
        inputs=(NEW, AT),
        state_in=((STACK, "k"),),
        state_out=((becomes, "k"),),
        outputs=outputs,
    )
    return program(made, states=("k",), shape=SHAPE)


def two_layers(*more, outputs=()):
    first = written(0, STACK, 10)
    second = written(2, first[-1].outputs[0], 20)
    end = second[-1].outputs[0]
    return stacked(*first, *second, *more, becomes=end, outputs=outputs)


def names_after(before):
    verify(before)
    after = SplitStacks().run(before)
    verify(after)
    return [state.name for state in after.states]


def test_before_and_after_are_as_agreed():
    read = node("aten::select.int", value(24, *SHAPE), 0, -1, to=value(30, *PART))
    before = two_layers(read, outputs=(value(30, *PART),))
    after = SplitStacks().run(before)
    verify(after)
    text = f"# before\n{program_text(before)}\n# after\n{program_text(after)}"
    assert_golden("pass_split_stacks", text)


def test_a_second_run_changes_nothing():
    after = SplitStacks().run(two_layers())
    assert program_text(SplitStacks().run(after)) == program_text(after)


def test_parts_hold_what_the_stack_did():
    before = two_layers()
    after = SplitStacks().run(before)
    given = [torch.rand(1, 2, 1, 4), torch.tensor([5])]
    old = torch.rand(SHAPE)
    _, expected, _ = interpret(before.methods[0], given, {"k": old})
    parts = {f"k[{i}]": old[i] for i in range(LAYERS)}
    _, found, _ = interpret(after.methods[0], given, parts)
    for i in range(LAYERS):
        assert torch.equal(found[f"k[{i}]"], expected["k"][i])


def test_a_part_whose_elements_were_moved_is_what_was_written():
    square = (1, 4, 4)
    stack, whole = value(0, 2, *square), value(5, 2, *square)
    old, place = value(2, *square), value(3, 1, dtype=I64)
    changed, row = value(4, *square), value(6, 1, *square)
    before = program(
        method(
            node("aten::select.int", stack, 0, 0, to=old),
            node("aten::index_copy", old, 1, AT6, value(1, 1, 1, 4), to=changed),
            node("aten::unfold", changed, 1, 4, 1, to=row),
            node("aten::arange.start_step", 0, 1, 1, I64, to=place),
            node("aten::index_copy", stack, 0, place, row, to=whole),
            inputs=(value(1, 1, 1, 4), AT6),
            state_in=((stack, "k"),),
            state_out=((whole, "k"),),
        ),
        states=("k",),
        shape=(2, *square),
    )
    verify(before)
    after = SplitStacks().run(before)
    given, filled = [torch.rand(1, 1, 4), torch.tensor([2])], torch.rand(2, *square)
    _, expected, _ = interpret(before.methods[0], given, {"k": filled})
    parts = {f"k[{i}]": filled[i] for i in range(2)}
    _, found, _ = interpret(after.methods[0], given, parts)
    assert torch.equal(found["k[0]"], expected["k"][0])


def test_a_method_that_sets_all_of_a_stack_sets_its_parts():
    before = two_layers()
    given = value(3, *SHAPE)
    fill = method(inputs=(given,), state_out=((given, "k"),), name="fill")
    after = SplitStacks().run(replace(before, methods=(*before.methods, fill)))
    verify(after)
    whole = torch.rand(SHAPE)
    _, found, _ = interpret(after.methods[1], [whole], {})
    assert [torch.equal(found[f"k[{i}]"], whole[i]) for i in range(LAYERS)] == [
        True
    ] * 3


def test_a_method_that_reads_all_of_a_stack_has_its_parts_put_together():
    before = two_layers()
    read = node("aten::neg", STACK, to=value(5, *SHAPE))
    made = method(read, state_in=((STACK, "k"),), outputs=read.outputs, name="read")
    after = SplitStacks().run(replace(before, methods=(*before.methods, made)))
    verify(after)
    old = torch.rand(SHAPE)
    parts = {f"k[{i}]": old[i] for i in range(LAYERS)}
    (found,), _, _ = interpret(after.methods[1], [], parts)
    assert torch.equal(found, -old)


def reading_whole():
    read = node("aten::neg", value(24, *SHAPE), to=value(30, *SHAPE))
    return two_layers(read, outputs=read.outputs)


def returning_whole():
    return two_layers(outputs=(value(24, *SHAPE),))


def at_a_constant():
    here = node("aten::arange.start_step", 5, 6, 1, I64, to=value(40, 1, dtype=I64))
    nodes = written(0, STACK, 10, index=here.outputs[0])
    return stacked(here, *nodes, becomes=nodes[-1].outputs[0])


def of_another():
    """Write a part that was made of something else."""
    given = value(3, *PART)
    nodes = list(written(0, STACK, 10))
    nodes[1] = replace(nodes[1], arguments=(given, *nodes[1].arguments[1:]))
    one = stacked(*nodes, becomes=nodes[-1].outputs[0])
    made = replace(one.methods[0], inputs=(NEW, AT, given), input_names=("n", "a", "g"))
    return replace(one, methods=(made,))


def at_a_place_that_varies():
    """Write the part that an input says."""
    layer = value(3, 1, dtype=I64)
    nodes = list(written(0, STACK, 10))
    nodes[4] = replace(nodes[4], arguments=(STACK, 0, layer, value(13, 1, *PART)))
    one = stacked(*nodes, becomes=nodes[-1].outputs[0])
    made = replace(one.methods[0], inputs=(NEW, AT, layer), input_names=("n", "a", "l"))
    return replace(one, methods=(made,))


@pytest.mark.parametrize(
    "before",
    [reading_whole, returning_whole, at_a_constant, of_another, at_a_place_that_varies],
)
def test_what_is_no_stack_of_caches_stays_one_state(before):
    assert names_after(before()) == ["k"]


@pytest.mark.parametrize("change", [{"grows": 3}, {"initial": "k.initial"}])
def test_a_stack_that_grows_or_begins_as_something_stays_one_state(change):
    before = two_layers()
    other = replace(before, states=(replace(before.states[0], **change),))
    assert [s.name for s in SplitStacks().run(other).states] == ["k"]
