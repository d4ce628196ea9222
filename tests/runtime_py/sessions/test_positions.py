"""Where a session is, and how far it may go."""

from dataclasses import replace

import numpy as np
import pytest
from hand_built import (
    F32,
    I64,
    PLACES,
    START,
    cache_program,
    cache_states,
    method,
    program,
    sized_program,
)
from stateful_programs import (
    BATCH,
    SEQ,
    Builder,
    carry_program,
    counted,
    linear_program,
    mixed_program,
    session_program,
)

from kvc.runtime import (
    BadSetting,
    CacheOverflow,
    NoPosition,
    StateMismatch,
    UnknownName,
)
from kvc.runtime.execution.executor import fill_cursors
from kvc.runtime.sessions.sizes import takes_one_position
from kvc.schema.graph import (
    Alias,
    CursorField,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
    Value,
)
from kvc.schema.model import Cursor, CursorKind, StateKind
from kvc.schema.types import TensorType


def rows(count, batch=1, width=64):
    return np.ones((batch, 3, count, width), np.float32)


def test_a_capacity_chooses_the_size_of_the_states(opened):
    with opened(linear_program()) as program:
        assert program.session().capacity == 32768
        session = program.session(capacity=16)
        assert session.capacity == 16
        assert session.state["cache0"].shape == (1, 3, 16, 64)
        assert program.session(16).capacity == 16


def test_a_capacity_of_states_of_fixed_size_limits_the_position(opened):
    with opened(cache_program()) as program:
        session = program.session(capacity=3)
        assert session.capacity == 3
        assert session.state["cache"].shape == (1, 1, 8, 2)
        session.prefill(np.ones((1, 1, 2, 2), np.float32))
        with pytest.raises(CacheOverflow) as caught:
            session.prefill(np.ones((1, 1, 2, 2), np.float32))
        assert (caught.value.start, caught.value.capacity) == (2, 3)
        session.decode(np.ones((1, 1, 1, 2), np.float32))
        assert session.position == 3


@pytest.mark.parametrize("capacity", [0, -1, 9, True, 2.5, "8"])
def test_a_capacity_out_of_bounds_is_named_with_them(opened, capacity):
    with (
        opened(cache_program()) as program,
        pytest.raises(BadSetting, match=r"capacity: expected (1\.\.8|an int)"),
    ):
        program.session(capacity=capacity)


@pytest.mark.parametrize("capacity", [0, 32769])
def test_a_capacity_that_sizes_states_has_the_symbols_bounds(opened, capacity):
    with (
        opened(linear_program()) as program,
        pytest.raises(BadSetting, match=r"capacity: expected 1\.\.32768, got"),
    ):
        program.session(capacity=capacity)


def test_without_position_and_symbol_there_is_no_capacity(opened):
    from hand_built import copied_update_program

    with opened(copied_update_program()) as program:
        assert program.session().capacity is None
        with pytest.raises(UnknownName, match="capacity"):
            program.session(capacity=4)


def test_without_position_the_symbol_alone_is_chosen(opened):
    with opened(sized_program()) as program:
        session = program.session(capacity=4)
        assert session.capacity == 4
        with pytest.raises(NoPosition, match=r"write caches .*Method\(position="):
            _ = session.position


def test_a_counters_position_is_a_copy(opened):
    with opened(linear_program()) as program, program.session() as session:
        session.write(rows(3))
        found = session.position
        found += 5
        assert session.position.tolist() == [3]
        assert session.position.dtype == np.int64


def test_what_does_not_fit_is_told_before_anything_runs(opened):
    with opened(mixed_program()) as program:
        session = program.session(capacity=8)
        session.run(rows(6, width=4))
        before = {name: look.copy() for name, look in session.state.items()}
        with pytest.raises(CacheOverflow) as caught:
            session.run(rows(3, width=4))
        facts = (caught.value.start, caught.value.count, caught.value.capacity)
        assert facts == (6, 3, 8)
        for name, look in session.state.items():
            assert np.array_equal(look, before[name])
        session.run(rows(2, width=4))
        assert session.position == 8


@pytest.mark.parametrize("shape", [(), (1,), (SEQ,)])
def test_the_session_fills_what_a_method_takes_of_the_cursor(opened, shape):
    with opened(session_program(shape)) as program, program.session() as session:
        session.write(rows(3, width=2))
        told = session.write(rows(2, width=2))
        expected = {(): 3, (1,): [3], (SEQ,): [3, 4]}[shape]
        assert told.tolist() == expected
        assert session.position.tolist() == [5]
        assert session.state["cache"][0, 0, :, 0].tolist()[:6] == [1, 1, 1, 1, 1, 0]


def test_a_cursor_has_the_batch_of_the_session(opened):
    with opened(session_program((BATCH,), BATCH)) as program:
        session = program.session(batch=3)
        assert session.position.tolist() == [0, 0, 0]
        session.write(rows(4, batch=3, width=2))
        session.rewind(np.array([0, 1, 4]))
        assert session.write(rows(1, batch=3, width=2)).tolist() == [4, 3, 0]
        assert session.position.tolist() == [5, 4, 1]


@pytest.mark.parametrize("field", list(CursorField))
@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_one_position_for_rows_that_differ_is_refused(field, shape):
    slot = np.zeros(shape, np.int64)
    with pytest.raises(StateMismatch, match="expected one position for all rows"):
        fill_cursors([(CursorSlot(0, field), slot)], [[1, 2]], [(3, 4)], "step")
    assert not slot.any()


def test_rows_that_differ_have_no_places_of_all_tokens():
    slot = np.zeros(2, np.int64)
    with pytest.raises(StateMismatch, match="expected one position for all rows"):
        fill_cursors([(PLACES, slot)], [[1, 2]], [(2, 2)], "step")


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (CursorField.START, [7, 4]),
        (CursorField.END, [8, 6]),
        (CursorField.LENGTHS, [1, 2]),
    ],
)
def test_each_row_has_its_own_number(field, expected):
    slot = np.zeros(2, np.int64)
    fill_cursors([(CursorSlot(0, field), slot)], [[7, 4]], [(1, 2)], "step")
    assert slot.tolist() == expected


@pytest.mark.parametrize(
    ("field", "expected"), [(CursorField.START, [7, 7]), (CursorField.PLACES, [7, 8])]
)
def test_as_many_rows_as_tokens_are_no_riddle(field, expected):
    slot = np.zeros(2, np.int64)
    fill_cursors([(CursorSlot(0, field), slot)], [[7, 7]], [(2, 2)], "step")
    assert slot.tolist() == expected


@pytest.mark.parametrize(
    ("field", "number"), [(CursorField.START, 7), (CursorField.END, 9)]
)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_rows_at_one_place_share_a_number(field, number, shape):
    slot = np.zeros(shape, np.int64)
    fill_cursors([(CursorSlot(0, field), slot)], [[7, 7, 7]], [(2, 2, 2)], "step")
    assert slot.reshape(-1).tolist() == [number]


@pytest.mark.parametrize(
    ("slots", "rows", "single"),
    [
        ([(CursorField.START, ())], BATCH, True),
        ([(CursorField.START, (1,))], BATCH, True),
        ([(CursorField.START, (BATCH,))], BATCH, False),
        ([(CursorField.START, (BATCH,))], None, True),
        ([(CursorField.PLACES, (SEQ,))], BATCH, True),
        ([(CursorField.START, (BATCH,)), (CursorField.END, (BATCH,))], BATCH, False),
        ([], None, False),
    ],
)
def test_what_a_method_takes_says_whether_rows_may_differ(slots, rows, single):
    b = Builder()
    for field, dims in slots:
        b.value(TensorType(I64, dims), CursorSlot(0, field))
    cursor = Cursor("at", CursorKind.SESSION, None, rows, None)
    other = replace(cursor, rows=None)
    made, _ = program([], cursors=[cursor, other])
    assert takes_one_position(b.method("look", {}, []), made, 0) == single
    assert not takes_one_position(b.method("look", {}, []), made, 1)


@pytest.mark.parametrize(("dims", "single"), [((1,), False), ((BATCH,), True)])
def test_a_counter_of_one_row_is_that_row_s_own(dims, single):
    b = Builder()
    b.value(TensorType(I64, (1,)), START)
    counter, cursor = counted(TensorType(I64, dims))
    cursor = replace(cursor, rows=None if dims == (1,) else BATCH)
    made, _ = program([], states=[counter], cursors=[cursor])
    assert takes_one_position(b.method("look", {}, []), made, 0) == single


def test_each_cursor_fills_its_own_fields():
    starts, ends = np.zeros(2, np.int64), np.zeros(1, np.int64)
    values = [(START, starts), (CursorSlot(1, CursorField.END), ends)]
    fill_cursors(values, [[7, 4], [20]], [(1, 3), (5,)], "step")
    assert (starts.tolist(), ends.tolist()) == ([7, 4], [25])


def test_without_a_session_calls_begin_at_nothing():
    slot = np.ones(3, np.int64)
    fill_cursors([(PLACES, slot)], [None], [(3,)], "step")
    assert slot.tolist() == [0, 1, 2]


def test_a_cursor_of_the_session_has_a_capacity_too(opened):
    with opened(session_program((1,))) as program:
        session = program.session(capacity=4)
        session.write(rows(4, width=2))
        with pytest.raises(CacheOverflow):
            session.write(rows(1, width=2))
        assert session.position == 4
        session.reset()
        assert session.position == 0


def test_the_position_may_be_the_length_of_what_grows(opened):
    with opened(carry_program()) as program, program.session() as session:
        session.grow(rows(3))
        assert session.position.tolist() == [3]
        session.lopsided(rows(2))
        with pytest.raises(NoPosition, match="different lengths: k has 5, v has 3"):
            _ = session.position


def counting_from(number):
    """Return `fill()` of a state that lies before a cache; its cursor begins there."""
    content = TensorType(F32, (1, 1, 4096, 64))
    fill = Graph(
        values=(
            Value(content, StateSlot(0)),
            Value(content, Scratch(0, content.nbytes({}))),
            Value(content, Alias(0)),
        ),
        inputs=(),
        outputs=(),
        instructions=(
            Instruction("aten::add.Scalar", (Ref(0), 1, 1), (1,), ""),
            Instruction("aten::copy", (Ref(0), Ref(1)), (2,), ""),
        ),
        scratch_nbytes=content.nbytes({}),
        peak_nbytes=0,
    )
    linear, counter = cache_states()
    plain = replace(
        linear, name="kept", type=content, kind=StateKind.PLAIN, axis=None, cursor=None
    )
    return program(
        [
            method(
                "fill", fill, [], reads=(0,), writes=(0,), output_tree='{"tuple": []}'
            )
        ],
        {"number": np.array([number], np.int64)},
        states=[plain, replace(linear, type=content), replace(counter, initial=0)],
        cursors=[Cursor("position", CursorKind.STATE, 2, 1, None)],
    )


@pytest.mark.parametrize("number", [-3, -4096, -(10**15)])
def test_a_cursor_before_all_slots_touches_no_other_state(opened, number):
    with opened(counting_from(number)) as program, program.session() as session:
        session.fill()
        session.trim()
        assert np.all(session.state["kept"] == 1)


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1])
def test_a_counter_to_which_nothing_can_be_added_is_named(opened, number):
    with opened(counting_from(number)) as program, program.session() as session:
        for use in (session.trim, session.fill, lambda: session.position):
            with pytest.raises(StateMismatch, match="state position: expected numbers"):
                use()
        assert np.all(session.state["kept"] == 0)
