from dataclasses import replace

from golden import assert_golden
from ir_samples import CACHE, F32, I64, method, node, program, value

from kvc.compiler.ir import State
from kvc.compiler.ir.text import program_text
from kvc.compiler.place import prove
from kvc.schema.types import Affine, Symbol, TensorType

OLD, NEW, NEWER = value(0, *CACHE), value(1, *CACHE), value(2, *CACHE)
ROW, SLOT = value(3, 1, 1, 4), value(4, 1, dtype=I64)
READ, PART = value(5, *CACHE), value(7, 1, 1, 4)
WRITE = node("aten::index_copy", OLD, 1, SLOT, ROW, to=NEW)
VIEW = node("aten::slice.Tensor", OLD, 1, 0, 1, 1, to=PART)
STATE = {"inputs": (ROW, SLOT), "state_in": ((OLD, "k"),)}


def proof_of(step, *states):
    return prove(step, program(step, states=("k", *states)))


def reasons(step, *states):
    return [verdict.reason for verdict in proof_of(step, *states).verdicts]


def ops(step, *states):
    found = proof_of(step, *states).method.nodes
    return [n.op.partition("::")[2] for n in found if n.op != "kvc::check_index"]


def test_a_write_whose_old_value_nobody_needs_is_in_place():
    (verdict,) = proof_of(method(WRITE, **STATE, state_out=((NEW, "k"),))).verdicts
    assert (verdict.memory, verdict.value, verdict.source) == ("k", 1, "model:1")
    assert (verdict.reason, verdict.copies, verdict.nbytes) == ("", (), 0)


def test_a_reader_of_the_old_value_is_put_before_the_write():
    read = node("aten::neg", OLD, to=READ)
    step = method(WRITE, read, **STATE, outputs=(READ,), state_out=((NEW, "k"),))
    assert reasons(step) == [""]
    assert ops(step) == ["neg", "index_copy"]


def test_a_reader_of_a_view_of_the_old_value_is_put_before_the_write():
    read = node("aten::neg", PART, to=value(8, 1, 1, 4))
    step = method(
        WRITE,
        VIEW,
        read,
        **STATE,
        outputs=(value(8, 1, 1, 4),),
        state_out=((NEW, "k"),),
    )
    assert reasons(step) == [""]
    assert ops(step) == ["slice.Tensor", "neg", "index_copy"]


def test_a_reader_that_needs_both_values_gets_a_copy_of_what_it_reads():
    both = node("aten::add.Tensor", NEW, PART, 1, to=READ)
    step = method(VIEW, WRITE, both, **STATE, outputs=(READ,), state_out=((NEW, "k"),))
    (verdict,) = proof_of(step).verdicts
    assert verdict.reason == (
        "aten::add.Tensor at model:5 reads the old value and needs the new one"
    )
    assert verdict.nbytes == 16  # the row, not the cache
    assert ops(step) == ["slice.Tensor", "clone", "index_copy", "add.Tensor"]


def test_an_old_value_that_is_handed_out_is_copied_first():
    step = method(WRITE, **STATE, outputs=(OLD,), state_out=((NEW, "k"),))
    assert reasons(step) == ["the method returns the old value"]
    assert ops(step) == ["clone", "index_copy"]


def test_a_right_hand_side_from_the_state_itself_is_copied_first():
    shift = node("aten::index_copy", OLD, 1, SLOT, PART, to=NEW)
    step = method(VIEW, shift, **STATE, state_out=((NEW, "k"),))
    assert reasons(step) == ["the written value is a view of the overwritten value"]
    assert ops(step) == ["slice.Tensor", "clone", "index_copy"]


def test_a_state_copied_over_itself_keeps_its_operand_in_place():
    over = node("aten::index_put", OLD, (SLOT, None), OLD, False, to=NEW)
    step = method(over, **STATE, state_out=((NEW, "k"),))
    (verdict,) = proof_of(step).verdicts
    write = proof_of(step).method.nodes[-1]
    assert write.inputs[0] == OLD
    assert write.inputs[2].id in verdict.copies


def test_two_writes_in_a_chain_are_both_in_place():
    again = node("aten::index_copy", NEW, 1, SLOT, ROW, to=NEWER)
    step = method(WRITE, again, **STATE, state_out=((NEWER, "k"),))
    assert reasons(step) == ["", ""]


def test_a_value_between_two_writes_that_is_handed_out_is_copied():
    again = node("aten::index_copy", NEW, 1, SLOT, ROW, to=NEWER)
    step = method(WRITE, again, **STATE, outputs=(NEW,), state_out=((NEWER, "k"),))
    assert reasons(step) == ["", "the method returns the old value"]


def test_an_update_that_no_state_keeps_is_a_reader():
    again = node("aten::index_copy", OLD, 1, SLOT, ROW, to=NEWER)
    step = method(again, WRITE, **STATE, outputs=(NEWER,), state_out=((NEW, "k"),))
    assert reasons(step) == [""]


def test_a_whole_new_value_is_made_where_the_old_one_lies():
    fresh = node("aten::mul.Scalar", OLD, 2.0, to=NEW)
    step = method(fresh, state_in=((OLD, "k"),), state_out=((NEW, "k"),))
    assert reasons(step) == [""]
    assert ops(step) == ["mul.Scalar"]


def test_a_new_value_whose_maker_mixes_places_is_moved_in():
    fresh = node("aten::flip", OLD, (1,), to=NEW)
    step = method(fresh, state_in=((OLD, "k"),), state_out=((NEW, "k"),))
    assert reasons(step) == [
        "the old value is still read when aten::flip makes the new one"
    ]
    assert ops(step) == ["flip", "copy"]


def test_a_new_value_that_comes_from_outside_is_written_once():
    given = value(9, *CACHE)
    step = method(inputs=(given,), state_out=((given, "k"),))
    assert reasons(step) == [""]
    assert ops(step) == ["copy"]
    assert [name for _, name in proof_of(step).method.state_in] == ["k"]


def test_one_value_for_two_states_is_made_in_one_and_copied_to_the_other():
    given = value(9, *CACHE)
    fresh = node("aten::neg", given, to=NEW)
    step = method(fresh, inputs=(given,), state_out=((NEW, "k"), (NEW, "l")))
    assert ops(step, "l") == ["neg", "copy"]
    assert sorted(reasons(step, "l")) == [
        "",
        "the old value is still read when aten::neg makes the new one",
    ]


def test_states_that_swap_keep_one_copy():
    other = value(6, *CACHE)
    step = method(
        state_in=((OLD, "k"), (other, "l")), state_out=((other, "k"), (OLD, "l"))
    )
    assert sorted(ops(step, "l")) == ["clone", "copy", "copy"]
    assert sum(v.nbytes for v in proof_of(step, "l").verdicts) == 128


def test_a_callers_array_is_written_like_a_state():
    cache = value(8, *CACHE)
    write = node("aten::index_copy", cache, 1, SLOT, ROW, to=NEW)
    step = method(write, inputs=(ROW, SLOT, cache), input_out=((NEW, "x8"),))
    (verdict,) = proof_of(step).verdicts
    assert (verdict.memory, verdict.reason) == ("x8", "")


LENGTH, LONGER = Affine(0, (("past", 1),)), Affine(2, (("past", 1),))
LONGEST = Affine(4, (("past", 1),))


def growing(step):
    kind = TensorType(F32, (1, 64, 4))
    base = program(step, symbols=(Symbol("past", 0, 64),))
    return replace(base, states=(State("k", kind, None, grows=1),))


def test_growing_leaves_readers_of_the_old_rows_where_they_are():
    past, rows = value(0, 1, LENGTH, 4), value(3, 1, 2, 4)
    new = value(1, 1, LONGER, 4)
    append = node("kvc::append", past, rows, 1, to=new)
    read = node("aten::neg", past, to=value(5, 1, LENGTH, 4))
    step = method(
        append,
        read,
        inputs=(rows,),
        state_in=((past, "k"),),
        state_out=((new, "k"),),
        outputs=(value(5, 1, LENGTH, 4),),
    )
    proof = prove(step, growing(step))
    assert [v.reason for v in proof.verdicts] == [""]
    assert proof.method.nodes == step.nodes


def test_a_callers_array_that_grows_twice_has_a_verdict_for_each():
    past, rows = value(0, 1, LENGTH, 4), value(3, 1, 2, 4)
    once, twice = value(1, 1, LONGER, 4), value(2, 1, LONGEST, 4)
    step = method(
        node("kvc::append", past, rows, 1, to=once),
        node("kvc::append", once, rows, 1, to=twice),
        inputs=(past, rows),
        outputs=(twice,),
    )
    verdicts = prove(step, growing(step)).verdicts
    assert [(v.memory, v.value) for v in verdicts] == [
        ("x0", once.id),
        ("x0", twice.id),
    ]


def test_a_growing_state_that_becomes_something_else_is_replaced():
    past, new = value(0, 1, LENGTH, 4), value(1, 1, 2, 4)
    step = method(inputs=(new,), state_in=((past, "k"),), state_out=((new, "k"),))
    proof = prove(step, growing(step))
    assert [n.op for n in proof.method.nodes] == ["kvc::replace"]


def test_before_and_after_are_as_agreed():
    position, count = value(10, 1, dtype=I64), value(11, 1, dtype=I64)
    check = node("aten::add.Scalar", position, 1, 1, to=count)
    write = node("kvc::cache_update", OLD, ROW, position, 1, "linear", None, 0, to=NEW)
    late = node("aten::add.Tensor", NEW, PART, 1, to=READ)
    early = node("aten::neg", OLD, to=value(12, *CACHE))
    step = method(
        check,
        write,
        VIEW,
        late,
        early,
        inputs=(ROW,),
        state_in=((OLD, "k"), (position, "position")),
        state_out=((NEW, "k"), (count, "position")),
        outputs=(READ, value(12, *CACHE)),
    )
    made = program(step, states=("k",))
    counter = State("position", TensorType(I64, (1,)), None)
    made = replace(made, states=(*made.states, counter))
    proof = prove(step, made)
    verdicts = "\n".join(str(v) for v in proof.verdicts)
    after = replace(made, methods=(proof.method,))
    text = (
        f"# before\n{program_text(made)}\n# after\n{program_text(after)}\n{verdicts}\n"
    )
    assert_golden("update_in_place", text)


def test_a_counter_whose_new_value_is_needed_earlier_is_counted_once_more():
    count = node("aten::add.Scalar", OLD, 1, 1, to=NEW)
    both = node("aten::mul.Tensor", NEW, OLD, to=READ)
    step = method(
        count, both, state_in=((OLD, "k"),), state_out=((NEW, "k"),), outputs=(READ,)
    )
    assert ops(step) == ["add.Scalar", "mul.Tensor", "add.Scalar"]
    assert reasons(step) == [""]
