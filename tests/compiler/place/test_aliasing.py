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


X, Y, Z = value(0, 2, 4), value(1, 2, 4), value(2, 2, 4)
FLIP = node("aten::flip", X, (0,), to=Y)


def lies_over(*nodes, outputs=(Z,)):
    """Tell over which value Z is written, Y being computed from the input X."""
    return analyse(method(FLIP, *nodes, inputs=(X,), outputs=outputs)).base.get(Z.id)


def test_a_pointwise_result_lies_over_an_operand_that_is_read_no_more():
    assert lies_over(node("aten::neg", Y, to=Z)) == Y.id
    assert lies_over(node("aten::add.Tensor", X, Y, 1, to=Z)) == Y.id
    assert lies_over(node("aten::mul.Tensor", Y, Y, to=Z)) == Y.id


def test_it_does_not_if_the_kernels_do_not_allow_it():
    step = method(FLIP, node("aten::neg", Y, to=Z), inputs=(X,), outputs=(Z,))
    assert not analyse(step, over_operands=False).base


def test_no_other_result_lies_over_an_operand():
    assert lies_over(node("aten::flip", Y, (0,), to=Z)) is None


def test_a_pointwise_result_lies_over_no_input():
    step = method(node("aten::neg", X, to=Y), inputs=(X,), outputs=(Y,))
    assert not analyse(step).base


def test_a_pointwise_result_lies_over_nothing_that_is_read_later():
    negate, later = node("aten::neg", Y, to=Z), value(3, 2, 4)
    assert lies_over(negate, node("aten::exp", Y, to=later)) is None
    assert lies_over(negate, outputs=(Z, Y)) is None
    view = node("aten::alias", Y, to=later)
    read = node("aten::exp", later, to=value(4, 2, 4))
    assert lies_over(view, negate, read) is None
    assert lies_over(view, negate, outputs=(Z, later)) is None


def test_a_pointwise_result_lies_over_no_view_and_beside_no_view():
    part = value(3, 2, 4)
    view = node("aten::alias", Y, to=part)
    assert lies_over(view, node("aten::neg", part, to=Z)) is None
    assert lies_over(view, node("aten::mul.Tensor", Y, part, to=Z)) is None


def test_a_pointwise_result_lies_over_its_own_type_only():
    row = value(1, 1, 4)
    whole = node("aten::sum.dim_IntList", X, (0,), True, to=row)
    wide = node("aten::mul.Tensor", X, row, to=Z)
    step = method(whole, wide, inputs=(X,), outputs=(Z,))
    assert not analyse(step).base


def test_a_chain_of_pointwise_results_is_one_memory():
    last = value(3, 2, 4)
    chain = (node("aten::neg", Y, to=Z), node("aten::exp", Z, to=last))
    step = method(FLIP, *chain, inputs=(X,), outputs=(last,))
    assert analyse(step).root == {0: 0, 1: 1, 2: 1, 3: 1}
