"""Slots for adapters, and bodies of methods for rows with adapters, or refused."""

from dataclasses import replace

import pytest
from growing_programs import growing_program
from sample_programs import changed, sample_program, state
from stateful_programs import BATCH, session_program

from kvc.schema.adapters import (
    FACTORS,
    GAIN,
    OFFSET,
    RANKS,
    ROWS,
    SCALES,
    A,
    B,
    slots_of,
    slots_text,
)
from kvc.schema.codec import decode, encode
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.model import Blob, NamedData, ResetRule, StateKind
from kvc.schema.types import TensorType
from kvc.schema.uses import SLOT
from kvc.schema.verify import verify_program
from kvc.schema.verify.limits import Reporter
from kvc.schema.verify.slots import check_slots

F32, I64, I8 = DType.FLOAT32, DType.INT64, DType.INT8


def tensor(*dims, dtype=F32):
    return TensorType(dtype, dims)


BARE = sample_program()
PREFILL, DECODE = BARE.methods
TWIN = replace(DECODE, name="adapted_decode", adapts=1)
GIVEN = (
    state(ROWS, tensor(1, dtype=I64), StateKind.PLAIN),
    state(SCALES, tensor(1), StateKind.PLAIN),
)
LAYER = {B: tensor(3, 4, 8), RANKS: tensor(3, dtype=I64)}
FULL = LAYER | {A: tensor(3, 4, 6), GAIN: tensor(3, 8), OFFSET: tensor(3, 8)}
INT8 = {
    B: tensor(3, 4, 8, dtype=I8),
    RANKS: tensor(3, dtype=I64),
    A: tensor(3, 4, 6, dtype=I8),
    FACTORS: tensor(3, 4),
}


def with_slots(layers, program=BARE, given=GIVEN, twins=(TWIN,)):
    """Return the program with slots of these parts, and with bodies for adapters."""
    empty = len(program.blobs)
    names = [
        NamedData(f"{path}.{part}", empty, kind, SLOT, "")
        for path, parts in layers.items()
        for part, kind in parts.items()
    ]
    return replace(
        program,
        blobs=(*program.blobs, Blob(bytes(32), 0, 0, 1024, 64)),
        names=(*program.names, *names),
        states=(*program.states, *given),
        methods=(*program.methods, *twins),
    )


P = with_slots({"x": FULL})


def refuse(program, text):
    with pytest.raises(BadProgram, match=text) as caught:
        verify_program(program, "m.kvc")
    assert str(caught.value).startswith("m.kvc: ")


def without(parts, *names):
    return {part: kind for part, kind in parts.items() if part not in names}


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (FULL, "2 adapters of up to rank 4, of 1 layer"),
        (INT8, "2 adapters of up to rank 4, of 1 layer"),
        (LAYER, "2 adapters, of 1 layer"),
        (without(FULL, A), "2 adapters, of 1 layer"),
        (without(FULL, GAIN, OFFSET), "2 adapters of up to rank 4, of 1 layer"),
    ],
)
def test_slots_of_each_form_pass_and_come_back_from_their_bytes(parts, text):
    program = with_slots({"layers.0.x": parts})
    verify_program(program, "m.kvc", thorough=True)
    found = decode(encode(program), "m.kvc")
    assert found == program
    assert slots_of(found).keys() == {"layers.0.x"}
    assert slots_text(found) == text


@pytest.mark.parametrize("name", ["x", "x.weight", "adapter_b", ".adapter_b", "x.b."])
def test_a_slot_is_a_part_of_a_layer(name):
    names = (*P.names[:-1], replace(P.names[-1], name=name))
    refuse(replace(P, names=names), f"named data '{name}': it is no part of slots")


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({A: tensor(3, 4, 6)}, "slots of 'z': there is no adapter_b"),
        (without(FULL, B), "there is no adapter_b"),
        (without(FULL, RANKS), "there is no adapter_ranks"),
        (FULL | {B: tensor(3)}, r"adapter_b is float32\[3\]"),
        (FULL | {B: tensor()}, r"adapter_b is float32\[\]"),
        (FULL | {B: tensor(3, 4, 8, 1)}, r"adapter_b is float32\[3, 4, 8, 1\]"),
        (FULL | {B: tensor(3, 4, 8, dtype=I64)}, r"adapter_b is int64\[3, 4, 8\]"),
        (FULL | {A: tensor()}, r"adapter_a is float32\[\], expected"),
        (FULL | {A: tensor(3)}, r"adapter_a is float32\[3\], expected"),
        (FULL | {A: tensor(3, 4)}, r"adapter_a is float32\[3, 4\], expected"),
        (FULL | {A: tensor(3, 5, 6)}, r"expected float32\[3, 4, 6\]"),
        (FULL | {A: tensor(4, 4, 6)}, r"expected float32\[3, 4, 6\]"),
        (FULL | {A: tensor(3, 4, 6, 1)}, r"adapter_a is float32\[3, 4, 6, 1\]"),
        (FULL | {A: tensor(3, 4, 6, dtype=I8)}, r"adapter_a is int8\[3, 4, 6\]"),
        (FULL | {RANKS: tensor(4, dtype=I64)}, r"adapter_ranks is int64\[4\]"),
        (FULL | {RANKS: tensor(3)}, r"expected int64\[3\]"),
        (FULL | {GAIN: tensor(3, 7)}, r"adapter_gain is float32\[3, 7\]"),
        (FULL | {OFFSET: tensor(3, 7)}, r"adapter_offset is float32\[3, 7\]"),
        (INT8 | {FACTORS: tensor(3, 5)}, r"adapter_factors is float32\[3, 5\]"),
        (without(INT8, FACTORS), "adapter_factors and int8 matrices go together"),
        (FULL | {FACTORS: tensor(3, 4)}, "adapter_factors and int8 matrices go"),
        (without(FULL, GAIN), "adapter_gain and adapter_offset go together"),
        (without(FULL, OFFSET), "adapter_gain and adapter_offset go together"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, text):
    refuse(with_slots({"z": parts}), text)


@pytest.mark.parametrize("count", [0, 1])
def test_there_is_room_for_an_adapter_beside_slot_0(count):
    parts = {B: tensor(count, 4, 8), RANKS: tensor(count, dtype=I64)}
    refuse(with_slots({"x": parts}), rf"layers have \[{count}\]")


def test_all_layers_have_one_number_of_slots():
    other = {B: tensor(2, 4, 8), RANKS: tensor(2, dtype=I64)}
    verify_program(with_slots({"x": LAYER, "y": FULL}), "m.kvc")
    refuse(with_slots({"x": LAYER, "y": other}), r"layers have \[2, 3\]")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((), "slots: there is no state 'kvc_adapters'"),
        (GIVEN[:1], "slots: there is no state 'kvc_adapter_scales'"),
        (GIVEN[1:], "slots: there is no state 'kvc_adapters'"),
    ],
)
def test_slots_need_the_states_that_say_who_uses_them(given, text):
    refuse(with_slots({"x": FULL}, given=given), text)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize(
    "fields",
    [
        {"type": tensor(1, dtype=DType.INT32)},
        {"type": tensor(1, 1), "layout": (0, 1)},
        {"type": tensor(1, 1, dtype=I64), "layout": (0, 1)},
        {"type": tensor(), "layout": ()},
        {"type": tensor(dtype=I64), "layout": ()},
        {"kind": StateKind.LINEAR, "axis": 0},
        {"reset": ResetRule.KEEP},
    ],
)
def test_a_state_of_another_form_is_refused(index, fields):
    given = changed(GIVEN, index, **fields)
    text = rf"state '{given[index].name}': it is no plain state \w+ \[rows\]"
    refuse(with_slots({"x": FULL}, given=given), text)


def test_the_states_have_no_initial_value():
    rows = replace(GIVEN[0], initial=2)
    program = with_slots({"x": FULL}, given=(rows, GIVEN[1]))
    refuse(program, "state 'kvc_adapters': it is no plain state int64")


def test_the_states_have_the_same_rows():
    scales = replace(GIVEN[1], type=tensor(2))
    program = with_slots({"x": FULL}, given=(GIVEN[0], scales))
    refuse(program, r"int64\[1\] and float32\[2\] have not the same rows")


def of_rows(program, rows):
    """Check the slots of a program, with states of so many rows."""
    kinds = tensor(rows, dtype=I64), tensor(rows)
    given = [replace(a, type=b) for a, b in zip(GIVEN, kinds, strict=True)]
    twin = replace(program.methods[0], name="twin", adapts=0)
    check_slots(with_slots({"x": FULL}, program, given, (twin,)), Reporter("m.kvc"))


def test_the_states_have_the_rows_of_a_session():
    batched = session_program((BATCH,), BATCH)[0]
    of_rows(batched, BATCH)
    with pytest.raises(BadProgram, match=r"state 'kvc_adapters': .* of batch rows"):
        of_rows(batched, 1)
    uncounted = replace(batched, cursors=())
    of_rows(uncounted, BATCH)
    with pytest.raises(BadProgram, match="of batch rows"):
        of_rows(uncounted, 1)
    apart = replace(batched.cursors[0], rows=2)
    with pytest.raises(BadProgram, match="of 2 rows"):
        of_rows(replace(batched, cursors=(apart,)), BATCH)


def test_the_states_have_the_rows_of_what_grows():
    growing = growing_program()
    grown = growing.states[0]
    two = replace(grown, type=tensor(2, *grown.type.dims[1:]))
    wide = replace(growing, states=(two,), cursors=())
    of_rows(wide, 2)
    with pytest.raises(BadProgram, match="of 2 rows"):
        of_rows(wide, 1)


@pytest.mark.parametrize("number", [2, 3])
def test_no_method_writes_the_states(number):
    methods = changed(P.methods, 0, writes=(0, 1, number))
    refuse(replace(P, methods=methods), "state 'kvc_.*': method 'prefill' writes it")


def test_slots_need_a_method_for_rows_with_adapters():
    refuse(with_slots({"x": FULL}, twins=()), "slots: no method is for rows with")


def test_without_slots_states_have_any_name_and_form():
    other = replace(GIVEN[1], name=ROWS, reset=ResetRule.KEEP)
    verify_program(replace(BARE, states=(*BARE.states, other)), "m.kvc")
    verify_program(replace(BARE, states=(*BARE.states, *GIVEN)), "m.kvc")


def test_methods_may_adapt_others_without_slots():
    """No method runs the layers that have slots."""
    verify_program(replace(BARE, methods=(*BARE.methods, TWIN)), "m.kvc")


@pytest.mark.parametrize("number", [2, 3, 9, 2**31 - 1])
def test_a_method_adapts_an_earlier_one(number):
    twins = (replace(TWIN, adapts=number),)
    text = f"method 'adapted_decode': it adapts method {number}"
    refuse(with_slots({"x": FULL}, twins=twins), text)


def test_no_method_adapts_one_that_adapts_another():
    twins = TWIN, replace(TWIN, name="again", adapts=2)
    text = "method 'again': it adapts 'adapted_decode'"
    refuse(with_slots({"x": FULL}, twins=twins), text)


def test_a_method_has_one_body_for_adapters():
    twins = TWIN, replace(TWIN, name="again")
    refuse(with_slots({"x": FULL}, twins=twins), r"methods: they adapt \[1, 1\]")


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "decode"},
        {"input_names": ("y",)},
        {"input_tree": DECODE.input_tree + " "},
        {"output_tree": DECODE.output_tree + " "},
        {"reads": (0,)},
        {"writes": (0,)},
        {"advances": ()},
        {"graph": PREFILL.graph},
        {"adapts": 0},
    ],
)
def test_a_body_of_another_signature_is_refused(fields):
    twins = (replace(TWIN, **fields),)
    text = "method 'adapted_decode': it differs from '(prefill|decode)' for callers"
    refuse(with_slots({"x": FULL}, twins=twins), text)
