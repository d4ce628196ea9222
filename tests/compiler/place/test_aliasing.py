from ir_samples import CACHE, I64, method, node, value

from kvc.compiler.place.aliasing import analyse

OLD, NEW, NEWER = value(0, *CACHE), value(1, *CACHE), value(2, *CACHE)
ROW, SLOT = value(3, 1, 1, 4), value(4, 1, dtype=I64)
WRITE = node("aten::index_copy", OLD, 1, SLOT, ROW, to=NEW)
STATE = {"inputs": (ROW, SLOT), "state_in": ((OLD, "k"),)}


def test_what_leads_to_a_states_content_lies_in_the_state():
    again = node("aten::index_copy", NEW, 1, SLOT, ROW, to=NEWER)
    aliases = analyse(method(WRITE, again, **STATE, state_out=((NEWER, "k"),)))
    assert aliases.base == {NEW.id: OLD.id, NEWER.id: NEW.id}
    assert aliases.root[NEWER.id] == OLD.id


def test_a_whole_new_content_lies_in_the_state():
    fresh = node("aten::neg", OLD, to=NEW)
    aliases = analyse(method(fresh, **STATE, state_out=((NEW, "k"),)))
    assert aliases.base == {NEW.id: OLD.id}


def test_an_update_that_no_state_keeps_has_memory_of_its_own():
    aliases = analyse(method(WRITE, **STATE, outputs=(NEW,)))
    assert aliases.root[NEW.id] == NEW.id


def test_a_write_over_a_part_has_memory_of_its_own():
    part = value(7, 1, 4, 4)
    view = node("aten::slice.Tensor", OLD, 1, 0, 4, 1, to=part)
    write = node("aten::index_copy", part, 1, SLOT, ROW, to=value(8, 1, 4, 4))
    aliases = analyse(method(view, write, **STATE, outputs=(value(8, 1, 4, 4),)))
    assert aliases.root == {3: 3, 4: 4, 0: 0, 7: 0, 8: 8}


def test_a_write_over_a_constant_has_memory_of_its_own():
    step = method(WRITE, inputs=(ROW, SLOT), constants=((OLD, "w"),), outputs=(NEW,))
    assert analyse(step).root[NEW.id] == NEW.id


def test_a_write_over_a_fresh_value_reuses_its_memory():
    fresh = node("aten::full", CACHE, 0, OLD.type.dtype, to=OLD)
    step = method(fresh, WRITE, inputs=(ROW, SLOT), outputs=(NEW,))
    assert analyse(step).root[NEW.id] == OLD.id


def test_a_write_over_a_fresh_value_that_is_read_later_does_not():
    fresh = node("aten::full", CACHE, 0, OLD.type.dtype, to=OLD)
    read = node("aten::neg", OLD, to=value(5, *CACHE))
    step = method(
        fresh, WRITE, read, inputs=(ROW, SLOT), outputs=(NEW, value(5, *CACHE))
    )
    assert analyse(step).root[NEW.id] == NEW.id


def test_an_input_that_a_method_changes_lies_in_the_callers_array():
    cache = value(8, *CACHE)
    write = node("aten::index_copy", cache, 1, SLOT, ROW, to=NEW)
    step = method(write, inputs=(ROW, SLOT, cache), input_out=((NEW, "x8"),))
    aliases = analyse(step)
    assert aliases.callers == {8}
    assert aliases.root[NEW.id] == 8


def test_an_input_that_grows_lies_in_the_callers_array():
    cache = value(8, *CACHE)
    grow = node("kvc::append", cache, ROW, 1, to=value(9, 1, 9, 4))
    aliases = analyse(method(grow, inputs=(ROW, cache), outputs=(value(9, 1, 9, 4),)))
    assert aliases.callers == {8}
    assert aliases.root[9] == 8


def test_every_result_of_a_split_shares_its_operands_memory():
    halves = (value(1, 1, 4, 4), value(2, 1, 4, 4))
    split = node("aten::split_with_sizes", OLD, (4, 4), 1, to=halves)
    aliases = analyse(method(split, inputs=(OLD,), outputs=halves))
    assert aliases.root == {0: 0, 1: 0, 2: 0}
    assert aliases.base == {1: 0, 2: 0}
