from dataclasses import replace

import pytest
from growing_programs import growing_program, rows
from sample_programs import sample_program

from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.model import StateKind
from kvc.schema.types import TensorType
from kvc.schema.verify import verify_program

P, GROWING = sample_program(), growing_program()
CACHE, COUNT = P.states
ROWS = GROWING.states[0]


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
        ({"cursor": 1}, "nothing places it at a cursor"),
        ({"cursor": None}, "a counter of no cursor"),
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


def test_a_plain_state_is_not_at_a_cursor():
    plain = replace(CACHE, name="p", kind=StateKind.PLAIN, axis=None, cursor=0)
    refuse(replace(P, states=(*P.states, plain)), "nothing places it at a cursor")


@pytest.mark.parametrize("kind", [StateKind.LINEAR, StateKind.RING, StateKind.APPEND])
def test_states_with_an_axis_may_be_at_a_cursor(kind):
    spare = replace(CACHE, name="spare", kind=kind, cursor=0)
    verify_program(replace(P, states=(*P.states, spare)), "m.kvc")


@pytest.mark.parametrize("cursors", [(), P.cursors])
def test_a_cursor_that_is_not_there_places_nothing(cursors):
    cache = replace(CACHE, cursor=len(cursors))
    refuse(replace(P, states=(cache, COUNT), cursors=cursors), "nothing places it")


def test_a_growing_state_starts_empty():
    start = replace(P.names[0], type=TensorType(DType.FLOAT32, (1, 16, 4)))
    grown = replace(ROWS, type=rows(16), initial=0)
    program = replace(GROWING, blobs=P.blobs[:1], names=(start,), states=(grown,))
    refuse(program, "a growing state starts empty")
