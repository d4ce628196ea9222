from ir_samples import CACHE, I64, method, node, value

from kvc.compiler.memory.aliasing import analyse

OLD, NEW, NEWER = value(0, *CACHE), value(1, *CACHE), value(2, *CACHE)
ROW, SLOT = value(3, 1, 1, 4), value(4, 1, dtype=I64)
READ, READ_TOO = value(5, *CACHE), value(6, *CACHE)
PART = value(7, 1, 1, 4)
WRITE = node("aten::index_copy", OLD, 1, SLOT, ROW, to=NEW)
STATE = {"inputs": (ROW, SLOT), "state_in": ((OLD, "k"),)}


def reasons(step):
    return [update.reason for update in analyse(step).updates]


def test_a_write_whose_old_value_nobody_needs_is_in_place():
    step = method(WRITE, **STATE, state_out=((NEW, "k"),))
    aliases = analyse(step)
    assert reasons(step) == [""]
    assert aliases.base[NEW.id] == OLD.id
    assert aliases.root[NEW.id] == OLD.id


def test_the_verdict_names_state_value_and_line():
    (update,) = analyse(method(WRITE, **STATE, state_out=((NEW, "k"),))).updates
    assert (update.state, update.value, update.source) == ("k", 1, "model:1")


def test_a_read_before_the_write_is_no_obstacle():
    read = node("aten::neg", OLD, to=READ)
    step = method(read, WRITE, **STATE, outputs=(READ,), state_out=((NEW, "k"),))
    assert reasons(step) == [""]


def test_a_later_read_of_the_old_value_makes_a_copy_and_is_named():
    read = node("aten::neg", OLD, to=READ)
    step = method(WRITE, read, **STATE, outputs=(READ,), state_out=((NEW, "k"),))
    assert reasons(step) == [
        "the old value is read afterwards, by aten::neg at model:5"
    ]
    assert analyse(step).root[NEW.id] == NEW.id


def test_a_later_read_of_a_view_of_the_old_value_makes_a_copy():
    view = node("aten::slice.Tensor", OLD, 1, 0, 1, 1, to=PART)
    read = node("aten::neg", PART, to=value(8, 1, 1, 4))
    step = method(view, WRITE, read, **STATE, state_out=((NEW, "k"),))
    assert reasons(step) == [
        "the old value is read afterwards, by aten::neg at model:8"
    ]


def test_a_view_taken_afterwards_of_the_old_value_makes_a_copy():
    view = node("aten::slice.Tensor", OLD, 1, 0, 1, 1, to=PART)
    step = method(WRITE, view, **STATE, outputs=(PART,), state_out=((NEW, "k"),))
    assert "by aten::slice.Tensor" in reasons(step)[0]


def test_reads_of_the_new_value_are_no_obstacle():
    read = node("aten::neg", NEW, to=READ)
    step = method(WRITE, read, **STATE, outputs=(READ,), state_out=((NEW, "k"),))
    assert reasons(step) == [""]


def test_an_old_value_that_is_an_output_makes_a_copy():
    step = method(WRITE, **STATE, outputs=(OLD,), state_out=((NEW, "k"),))
    assert reasons(step) == ["the method hands the old value out"]


def test_a_view_of_the_old_value_that_is_an_output_makes_a_copy():
    view = node("aten::slice.Tensor", OLD, 1, 0, 1, 1, to=PART)
    step = method(view, WRITE, **STATE, outputs=(PART,), state_out=((NEW, "k"),))
    assert reasons(step) == ["the method hands the old value out"]


def test_an_old_value_that_another_state_takes_makes_a_copy():
    step = method(WRITE, **STATE, state_out=((NEW, "k"), (OLD, "other")))
    assert reasons(step) == ["the method hands the old value out"]


def test_a_right_hand_side_from_the_state_itself_makes_a_copy():
    view = node("aten::slice.Tensor", OLD, 1, 0, 1, 1, to=PART)
    shift = node("aten::index_copy", OLD, 1, SLOT, PART, to=NEW)
    step = method(view, shift, **STATE, state_out=((NEW, "k"),))
    assert reasons(step) == ["what is written is a view of what is written over"]


def test_two_writes_in_a_chain_are_both_in_place():
    again = node("aten::index_copy", NEW, 1, SLOT, ROW, to=NEWER)
    step = method(WRITE, again, **STATE, state_out=((NEWER, "k"),))
    assert reasons(step) == ["", ""]
    assert analyse(step).root[NEWER.id] == OLD.id


def test_reading_between_two_writes_costs_nothing():
    read = node("aten::neg", NEW, to=READ)
    again = node("aten::index_copy", NEW, 1, SLOT, ROW, to=NEWER)
    step = method(
        WRITE, read, again, **STATE, outputs=(READ,), state_out=((NEWER, "k"),)
    )
    assert reasons(step) == ["", ""]


def test_two_writes_over_one_old_value_copy_the_first():
    again = node("aten::index_copy", OLD, 1, SLOT, ROW, to=NEWER)
    step = method(WRITE, again, **STATE, outputs=(NEW,), state_out=((NEWER, "k"),))
    assert reasons(step) == [
        "the old value is read afterwards, by aten::index_copy at model:2",
        "",
    ]


def test_a_write_over_a_part_is_a_copy():
    part = value(7, 1, 4, 4)
    view = node("aten::slice.Tensor", OLD, 1, 0, 4, 1, to=part)
    write = node("aten::index_copy", part, 1, SLOT, ROW, to=value(8, 1, 4, 4))
    step = method(view, write, **STATE, outputs=(value(8, 1, 4, 4),))
    assert reasons(step) == ["the operand is a view of a part"]


def test_a_write_over_a_constant_is_a_copy():
    step = method(WRITE, inputs=(ROW, SLOT), constants=((OLD, "w"),), outputs=(NEW,))
    assert analyse(step).root[NEW.id] == NEW.id
    assert analyse(step).updates == ()


def test_a_write_over_a_fresh_value_reuses_its_memory():
    fresh = node("aten::full", CACHE, 0, OLD.type.dtype, to=OLD)
    step = method(fresh, WRITE, inputs=(ROW, SLOT), outputs=(NEW,))
    assert analyse(step).root[NEW.id] == OLD.id


def test_every_result_of_a_split_shares_its_operands_memory():
    halves = (value(1, 1, 4, 4), value(2, 1, 4, 4))
    split = node("aten::split_with_sizes", OLD, (4, 4), 1, to=halves)
    aliases = analyse(method(split, inputs=(OLD,), outputs=halves))
    assert aliases.root == {0: 0, 1: 0, 2: 0}
    assert aliases.base == {1: 0, 2: 0}
