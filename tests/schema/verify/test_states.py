from dataclasses import replace

import pytest
from growing_programs import CAPACITY, PAST, growing_program, rows
from sample_programs import sample_program

from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram, FormatError
from kvc.schema.model import CursorKind, Position, StateKind
from kvc.schema.types import Affine, TensorType, affine
from kvc.schema.verify import verify_program

P, GROWING = sample_program(), growing_program()
CACHE, COUNT = P.states
ROWS = GROWING.states[0]
SEQ = affine(0, {"seq": 1})


def refuse(program, text, error=BadProgram):
    with pytest.raises(error, match=text) as caught:
        verify_program(program, "m.kvc")
    assert str(caught.value).startswith("m.kvc: ")


def tensor(dtype, *dims):
    return TensorType(dtype, dims)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "position"}, "twice"),
        ({"axis": None}, "axis and kind"),
        ({"kind": StateKind.PLAIN}, "axis and kind"),
        ({"kind": StateKind.COUNTER}, "axis and kind"),
        ({"kind": StateKind.APPEND, "axis": None}, "axis and kind"),
        ({"axis": 3}, "axis 3 of 3"),
        ({"layout": (0, 1)}, "layout"),
        ({"layout": (0, 1, 1)}, "layout"),
        ({"layout": (0, 1, 3)}, "layout"),
        ({"initial": 9}, "no data 9"),
        ({"initial": 0}, "cannot start as"),
    ],
)
def test_a_bad_state_is_refused(change, text):
    refuse(replace(P, states=(replace(CACHE, **change), COUNT)), text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"axis": 0}, "axis and kind"),
        ({"type": tensor(DType.FLOAT32, 2), "initial": None}, "as a counter"),
        ({"type": tensor(DType.BOOL, 1), "initial": None}, "as a counter"),
        ({"type": tensor(DType.INT16, 1), "initial": None}, "as a counter"),
        (
            {"type": tensor(DType.INT64, 1, 1), "layout": (0, 1), "initial": None},
            "as a counter",
        ),
        ({"at_position": True}, "nothing places it at a position"),
    ],
)
def test_a_bad_counter_is_refused(change, text):
    refuse(replace(P, states=(CACHE, replace(COUNT, **change))), text)


@pytest.mark.parametrize("dtype", [DType.INT32, DType.INT64])
@pytest.mark.parametrize("dims", [(), (1,), (4,)])
def test_a_counter_may_be_a_scalar_or_a_row(dtype, dims):
    spare = replace(
        COUNT,
        name="spare",
        type=tensor(dtype, *dims),
        layout=tuple(range(len(dims))),
        initial=None,
    )
    verify_program(replace(P, states=(*P.states, spare)), "m.kvc")


def test_a_plain_state_is_not_at_the_position():
    plain = replace(CACHE, name="p", kind=StateKind.PLAIN, axis=None, at_position=True)
    refuse(replace(P, states=(*P.states, plain)), "nothing places it at a position")


@pytest.mark.parametrize("kind", [StateKind.LINEAR, StateKind.RING, StateKind.APPEND])
def test_states_with_an_axis_may_be_at_the_position(kind):
    spare = replace(CACHE, name="spare", kind=kind, at_position=True)
    verify_program(replace(P, states=(*P.states, spare)), "m.kvc")


def test_without_a_position_nothing_is_at_it():
    spare = replace(CACHE, at_position=True)
    refuse(replace(P, states=(spare, COUNT), position=None), "nothing places it")


def test_a_growing_state_starts_empty():
    start = replace(P.names[0], type=TensorType(DType.FLOAT32, (1, 16, 4)))
    grown = replace(ROWS, type=rows(16), initial=0)
    program = replace(GROWING, blobs=P.blobs[:1], names=(start,), states=(grown,))
    refuse(program, "what grows starts empty")


@pytest.mark.parametrize(
    "position",
    [
        Position(CursorKind.STATE, None, "", None),
        Position(CursorKind.STATE, 2, "", None),
        Position(CursorKind.STATE, 0, "", None),
        Position(CursorKind.STATE, 1, "x", None),
        Position(CursorKind.INPUT, None, "", None),
        Position(CursorKind.INPUT, 1, "x", None),
        Position(CursorKind.INPUT, None, "x\n", None),
        Position(CursorKind.LENGTH, 1, "", None),
        Position(CursorKind.STATE, 1, "", 2**40),
        Position(CursorKind.STATE, 1, "", -1),
        Position(CursorKind.STATE, 1, "", affine(-2, {"seq": 1})),
        Position(CursorKind.STATE, 1, "", Affine(1, ())),
    ],
)
def test_a_bad_position_is_refused(position):
    refuse(replace(P, position=position), "position", FormatError)


def test_a_position_counts_in_int64():
    narrow = replace(COUNT, type=tensor(DType.INT32, 1), initial=None)
    refuse(replace(P, states=(CACHE, narrow)), "not COUNTER of int64")


def test_a_position_is_a_counter():
    plain = replace(COUNT, kind=StateKind.PLAIN)
    refuse(replace(P, states=(CACHE, plain)), "it is PLAIN of .*, not COUNTER")


def test_a_length_is_of_a_state_that_grows():
    length = Position(CursorKind.LENGTH, None, "", None)
    refuse(replace(P, position=length), "no state grows by appending")


@pytest.mark.parametrize(
    "capacity", [None, 0, 64, CAPACITY, affine(1, {"capacity": 2})]
)
def test_a_capacity_is_of_symbols_that_states_use(capacity):
    position = replace(GROWING.position, capacity=capacity)
    verify_program(replace(GROWING, position=position), "m.kvc")


@pytest.mark.parametrize("capacity", [SEQ, PAST, affine(0, {"capacity": 1, "seq": 1})])
def test_a_capacity_is_of_no_other_symbols(capacity):
    position = replace(GROWING.position, capacity=capacity)
    text = r"its capacity .* has \['(seq|past)'\], which no state does"
    refuse(replace(GROWING, position=position), text)


def test_a_capacity_is_of_declared_symbols():
    position = replace(GROWING.position, capacity=affine(0, {"other": 1}))
    refuse(replace(GROWING, position=position), r"undeclared symbols \['other'\]")
