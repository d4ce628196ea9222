from ir_samples import CACHE, I64, method, node, program, value

from kvc.compiler.place import prove
from kvc.schema.dtypes import DType
from kvc.schema.types import Affine

BOOL = DType.BOOL
OLD, NEW = value(0, *CACHE), value(1, *CACHE)
ROW, SLOT = value(3, 1, 1, 4), value(4, 1, dtype=I64)
HEAVY = node("aten::neg", OLD, to=value(5, *CACHE))


def checks(*nodes, **fields):
    step = method(*nodes, **{"inputs": (ROW, SLOT), **fields})
    made = prove(step, program(step, states=("k", "l"))).method
    found = [(i, n.arguments) for i, n in enumerate(made.nodes) if not n.outputs]
    return found, [n.op for n in made.nodes]


def test_an_index_that_is_given_is_checked_before_anything_else_runs():
    write = node("aten::index_copy", OLD, 1, SLOT, ROW, to=NEW)
    found, ops = checks(HEAVY, write, state_in=((OLD, "k"),), state_out=((NEW, "k"),))
    assert found == [(0, (SLOT, 0, 1, 8))]
    assert ops == ["kvc::check_index", "aten::neg", "aten::index_copy"]


def test_what_the_index_follows_from_comes_first_too():
    index = value(6, 1, dtype=I64)
    plus = node("aten::add.Scalar", SLOT, 3, 1, to=index)
    write = node("aten::index_copy", OLD, 1, index, ROW, to=NEW)
    _, ops = checks(HEAVY, plus, write, state_in=((OLD, "k"),), state_out=((NEW, "k"),))
    assert ops[:2] == ["aten::add.Scalar", "kvc::check_index"]


def test_a_linear_cache_update_must_fit_from_its_start_on():
    rows = value(3, 1, Affine(0, (("seq", 1),)), 4)
    write = node("kvc::cache_update", OLD, rows, SLOT, -2, "linear", None, 0, to=NEW)
    found, _ = checks(
        write,
        inputs=(rows, SLOT),
        state_in=((OLD, "k"),),
        state_out=((NEW, "k"),),
    )
    assert found[0][1] == (SLOT, 0, rows.type.dims[1], 8)


def test_rows_that_count_are_checked_with_their_counts():
    rows, active = value(3, 1, Affine(0, (("seq", 1),)), 4), value(7, 1, dtype=BOOL)
    counts = value(8, 1, dtype=I64)
    cast = node("aten::_to_copy", active, DType.INT64, to=counts)
    write = node("kvc::cache_update", OLD, rows, SLOT, -2, "linear", counts, 0, to=NEW)
    found, ops = checks(
        HEAVY,
        cast,
        write,
        inputs=(rows, SLOT, active),
        state_in=((OLD, "k"),),
        state_out=((NEW, "k"),),
    )
    assert ops[:2] == ["aten::_to_copy", "kvc::check_rows"]
    assert found == [(1, (SLOT, counts, rows.type.dims[1], 8))]


def test_a_circular_cache_update_needs_no_check():
    write = node("kvc::cache_update", OLD, ROW, SLOT, 1, "circular", None, 0, to=NEW)
    assert checks(write, state_in=((OLD, "k"),), state_out=((NEW, "k"),))[0] == []


def test_an_index_put_may_count_from_the_end():
    write = node("aten::index_put", OLD, (None, SLOT), ROW, False, to=NEW)
    found, _ = checks(write, state_in=((OLD, "k"),), state_out=((NEW, "k"),))
    assert found[0][1] == (SLOT, -8, 1, 8)


def test_equal_checks_are_made_once():
    first = node("aten::index_copy", OLD, 1, SLOT, ROW, to=NEW)
    other, new = value(7, *CACHE), value(8, *CACHE)
    second = node("aten::index_copy", other, 1, SLOT, ROW, to=new)
    found, _ = checks(
        first,
        second,
        state_in=((OLD, "k"), (other, "l")),
        state_out=((NEW, "k"), (new, "l")),
    )
    assert len(found) == 1


def test_an_index_that_never_differs_is_left_to_its_write():
    index = value(6, 1, dtype=I64)
    fixed = node("aten::arange.start_step", 3, 4, 1, I64, to=index)
    write = node("aten::index_copy", OLD, 1, index, ROW, to=NEW)
    found, _ = checks(fixed, write, state_in=((OLD, "k"),), state_out=((NEW, "k"),))
    assert found == []


def test_an_index_that_follows_from_computed_numbers_is_left_to_its_write():
    index = value(6, 1, dtype=I64)
    pick = node("aten::argmax", ROW, 2, False, to=value(9, 1, 1, dtype=I64))
    flat = node("aten::view", value(9, 1, 1, dtype=I64), (1,), to=index)
    write = node("aten::index_copy", OLD, 1, index, ROW, to=NEW)
    found, _ = checks(
        pick, flat, write, state_in=((OLD, "k"),), state_out=((NEW, "k"),)
    )
    assert found == []
