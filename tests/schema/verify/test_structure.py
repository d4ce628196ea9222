import struct
from collections import Counter

import pytest
from growing_programs import growing_program, positioned_program
from sample_programs import sample_program, tiny_program
from verifier_checks import place_of

from kvc.schema._generated import TABLES
from kvc.schema.codec import encode
from kvc.schema.codec.records import TableReader
from kvc.schema.errors import BadMagic, BadStructure, FormatError, LimitExceeded
from kvc.schema.verify import limits, structure
from kvc.schema.verify.structure import verify_structure

RAW = encode(tiny_program())


def refuse(raw, text="", error=BadStructure):
    with pytest.raises(error, match=text or "."):
        verify_structure(bytes(raw), "Program", b"KVCP", "x")


def place(table, name):
    return table.place(name)


def patched(position, raw):
    return RAW[:position] + raw + RAW[position + len(raw) :]


ROOT = TableReader.root(RAW, "Program")
POOL = ROOT.child("pool")
METHOD = ROOT.children("methods")[0]
GRAPH = METHOD.child("graph")


def test_what_the_codec_writes_passes():
    verify_structure(RAW, "Program", b"KVCP", "x")
    for program in (sample_program(), growing_program(), positioned_program()):
        verify_structure(encode(program), "Program", b"KVCP", "x")


def test_every_truncation_is_refused():
    for size in range(len(RAW) - 7):  # the last bytes may be padding
        refuse(RAW[:size], error=FormatError)


def test_every_extension_is_refused():
    # Less than one word of padding is what a writer may leave.
    for extra in (8, 12, 4096):
        refuse(RAW + bytes(extra))
    refuse(RAW + b"\1")


def test_another_identifier_is_refused():
    refuse(RAW[:4] + b"KVCX" + RAW[8:], error=BadMagic)
    refuse(b"", error=BadMagic)


def test_a_huge_count_is_refused_before_anything_is_walked():
    for name in ("value_types", "argument_kinds", "argument_values"):
        position = GRAPH._target(name)
        refuse(patched(position, b"\xff\xff\xff\xff"), "reaches past the end")
    refuse(patched(ROOT._target("methods"), b"\xff\xff\xff\xff"), "past the end")
    refuse(patched(POOL._target("ops"), b"\xff\xff\xff\xff"), "past the end")


def test_a_table_that_is_reached_twice_is_refused():
    first = place(ROOT, "names")
    target = ROOT._target("blobs")
    refuse(patched(first, struct.pack("<I", target - first)))


def test_a_vector_that_is_reached_twice_is_refused():
    first, target = place(GRAPH, "inputs"), GRAPH._target("outputs")
    refuse(patched(first, struct.pack("<I", target - first)), "overlap|hole|not zero")


def test_each_missing_field_is_refused():
    (back,) = struct.unpack_from("<i", RAW, _position(GRAPH))
    vtable = _position(GRAPH) - back
    for slot, field in enumerate(TABLES["Graph"]):
        changed = patched(vtable + 4 + 2 * slot, b"\0\0")
        refuse(changed, f"Graph.{field[0]} is missing")


def _position(table):
    """Return where a table begins: the first field's place minus its offset."""
    parent = METHOD
    return parent._target("graph")


def test_an_enum_value_that_does_not_exist_is_refused():
    for name, count in (("argument_kinds", 9), ("value_storages", 6)):
        position = GRAPH._target(name) + 4
        refuse(patched(position, bytes([count])), f"Graph.{name} has a value")
    state = ROOT.children("states")[0]
    refuse(patched(place(state, "kind"), b"\5"), "State.kind has a value")


def test_a_dim_kind_that_does_not_exist_is_refused():
    raw = encode(growing_program())
    root = TableReader.root(raw, "Program")
    cursor, method = root.children("cursors")[0], root.children("methods")[0]
    advance = method.children("advances")[0]
    for table, name in ((cursor, "capacity_kind"), (advance, "tokens_kind")):
        changed = bytearray(raw)
        assert changed[place(table, name)] == 1
        changed[place(table, name)] = 2
        refuse(changed, f"{name} has a value")


def test_each_missing_field_of_states_and_methods_is_refused():
    raw = encode(sample_program())
    root = TableReader.root(raw, "Program")
    for kind, start in (
        ("State", root._targets("states")[0]),
        ("Method", root._targets("methods")[0]),
        ("Cursor", root._targets("cursors")[0]),
        ("Advance", root.children("methods")[0]._targets("advances")[0]),
    ):
        (back,) = struct.unpack_from("<i", raw, start)
        for slot, field in enumerate(TABLES[kind]):
            entry = start - back + 4 + 2 * slot
            changed = raw[:entry] + b"\0\0" + raw[entry + 2 :]
            if not field[4]:
                refuse(changed, f"{kind}.{field[0]} is missing")


def test_a_string_without_an_end_is_refused():
    position = METHOD._target("name")
    refuse(patched(position + 5, b"x"), "no end|not zero")
    refuse(patched(position, b"\xff\xff\xff\x7f"), "no end")


def test_a_string_with_nul_or_bad_utf8_is_refused():
    position = METHOD._target("input_tree") + 4
    refuse(patched(position, b"\0"), "NUL")
    refuse(patched(position, b"\xff"), "UTF-8")
    op = POOL._targets("ops")[0] + 4
    refuse(patched(op, b"\0"), "NUL")
    refuse(patched(op, b"\xff"), "UTF-8")


def test_padding_that_is_not_zero_is_refused():
    places = Counter()
    for position in range(8, len(RAW)):
        if RAW[position] == 0:
            try:
                verify_structure(patched(position, b"\1"), "Program", b"KVCP", "x")
            except BadStructure as error:
                if "padding is not zero" in str(error):
                    places[place_of(error).split(", ")[1].partition(":")[0]] += 1
    assert places.total() > 10
    assert places["check_table"] > 0  # between its fields, too


def test_an_offset_that_leads_nowhere_is_refused():
    refuse(patched(place(ROOT, "pool"), bytes(4)), "an offset is zero")
    refuse(patched(POOL._target("ops") + 4, bytes(4)), "an offset is zero")


def test_a_string_that_is_reached_twice_is_refused():
    first = POOL._target("ops") + 4
    (found,) = struct.unpack_from("<I", RAW, first)
    again = struct.pack("<I", found - 4)  # of the next one, which is 4 bytes later
    refuse(patched(first + 4, again), "two parts overlap")


@pytest.mark.parametrize("change", [1, 2, 2**20, 2**31 - 4, -(2**20)])
def test_a_string_of_many_that_lies_nowhere_is_refused(change):
    first = POOL._target("ops") + 4
    (found,) = struct.unpack_from("<I", RAW, first)
    other = struct.pack("<I", (found + change) % 2**32)
    refuse(patched(first, other), "a string is misplaced")


def test_a_string_of_many_without_an_end_is_refused():
    first, *_ = POOL._targets("ops")
    (count,) = struct.unpack_from("<I", RAW, first)
    for other in (count - 1, 2**31 - 1):
        refuse(patched(first, struct.pack("<I", other)), "a string has no end")


@pytest.mark.parametrize(
    ("at", "change", "text"),
    [
        (0, 1, "a table Graph with other fields"),
        (0, 2, "a table Graph with other fields"),
        (2, 16, "fields overlap, or a hole"),
        (2, -8, "fields overlap, or a hole"),
    ],
)
def test_a_vtable_says_what_its_table_has(at, change, text):
    position = _position(GRAPH)
    vtable = position - struct.unpack_from("<i", RAW, position)[0]
    (found,) = struct.unpack_from("<H", RAW, vtable + at)
    refuse(patched(vtable + at, struct.pack("<H", found + change)), text)


def test_offsets_that_lead_out_are_refused():
    for table, name in ((ROOT, "pool"), (METHOD, "name"), (GRAPH, "inputs")):
        for value in (0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, len(RAW)):
            refuse(patched(place(table, name), struct.pack("<I", value)))


def test_vtables_that_lead_out_are_refused():
    position = _position(GRAPH)
    for value in (0, 1, -1, 2**31 - 1, -(2**31), position + 2, position - len(RAW)):
        refuse(patched(position, struct.pack("<i", value)))
    (back,) = struct.unpack_from("<i", RAW, position)
    for value in (0, 2, 3, 5, 0xFFFE, 0xFFFF):
        refuse(patched(position - back, struct.pack("<H", value)))
        refuse(patched(position - back + 2, struct.pack("<H", value)))


def test_every_field_offset_is_held_to_its_table():
    position = _position(GRAPH)
    (back,) = struct.unpack_from("<i", RAW, position)
    for slot in range(len(TABLES["Graph"])):
        entry = position - back + 4 + 2 * slot
        for value in (1, 2, 3, 5, 0xFFF0, 0xFFFF):
            refuse(patched(entry, struct.pack("<H", value)))


@pytest.mark.parametrize("name", ["integers", "dim_values", "symbol_lowers"])
def test_numbers_that_are_not_aligned_are_refused(name):
    at = place(POOL, name)
    (offset,) = struct.unpack_from("<I", RAW, at)
    refuse(patched(at, struct.pack("<I", offset + 4)), f"Pool.{name} is misaligned")


def test_a_number_that_is_not_aligned_is_refused():
    raw = encode(positioned_program())
    (state, *_) = TableReader.root(raw, "Program").children("states")
    at = place(state, "cursor")
    for entry in range(8, at, 2):
        (offset,) = struct.unpack_from("<H", raw, entry)
        changed = raw[:entry] + struct.pack("<H", offset + 2) + raw[entry + 2 :]
        if _is_misaligned(changed, "State.cursor"):
            return
    raise AssertionError("no offset of a field was found")


def _is_misaligned(raw, field):
    try:
        verify_structure(raw, "Program", b"KVCP", "x")
    except FormatError as error:
        return f"{field} is misaligned" in str(error)
    return False


def test_limits_hold(monkeypatch):
    monkeypatch.setattr(structure, "MAX_TABLES", 3)
    refuse(RAW, "number of tables", LimitExceeded)
    monkeypatch.setattr(structure, "MAX_PROGRAM_NBYTES", 100)
    refuse(RAW, "Program, in bytes,", LimitExceeded)
    assert limits.MAX_PROGRAM_NBYTES == 64 << 20
