"""Methods by several recipes: one program to whoever calls it, or refused."""

from dataclasses import replace

import pytest
from delegated_partitions import delegated_program
from hand_built import write_bundle

from kvc.schema.codec import decode, encode
from kvc.schema.container import BundleFile, join_bundle, split_bundle, verify_bundle
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram, LimitExceeded
from kvc.schema.graph import Caller, Constant, Value
from kvc.schema.model import Blob, Variant
from kvc.schema.types import Symbol, TensorType, affine
from kvc.schema.verify import verify_program
from kvc.schema.verify.dims import CheckedTypes
from kvc.schema.verify.limits import MAX_BUCKETS, MAX_VARIANTS, Reporter

BARE, BYTES = delegated_program(backend="one")
PROGRAM = replace(BARE, blobs=(Blob(bytes(32), 16, 0, 128, 64),))
(METHOD,) = PROGRAM.methods
(DELEGATE,) = PROGRAM.delegates
TWO = replace(DELEGATE, backend="two")
OTHER = Variant("other", "", (METHOD,), (TWO,), PROGRAM.symbols)
(SEQ,) = PROGRAM.symbols
GRAPH = METHOD.graph


def with_variants(*variants):
    return replace(PROGRAM, variants=variants)


def changed(**fields):
    return replace(OTHER, methods=(replace(METHOD, **fields),))


def with_value(number, **fields):
    values = list(GRAPH.values)
    values[number] = replace(values[number], **fields)
    return changed(graph=replace(GRAPH, values=tuple(values)))


def test_a_program_with_a_variant_is_right_and_comes_back_from_its_bytes():
    program = with_variants(OTHER)
    verify_program(program, "m.kvc", thorough=True)
    assert decode(encode(program), "m.kvc") == program


def test_each_recipe_has_a_body_of_its_own():
    one, two = with_variants(OTHER).bodies
    assert one == PROGRAM
    assert (one.backends, two.backends) == (("one",), ("two",))
    assert two.provenance == replace(one.provenance, recipe="other", recipe_text="")
    assert (one.variants, two.variants) == ((), ())


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        (changed(name="backward"), "method 'backward' differs from 'forward'"),
        (changed(role="decode"), "differs from 'forward' for callers"),
        (changed(input_names=("y",)), "differs from"),
        (changed(input_tree=METHOD.input_tree + " "), "differs from"),
        (changed(output_tree=METHOD.output_tree + " "), "differs from"),
        (changed(reads=(0,)), "differs from"),
        (changed(writes=(0,)), "differs from"),
        (changed(advances=(0,)), "differs from"),
        (with_value(0, type=TensorType(DType.FLOAT32, (4,))), "differs from"),
        (with_value(0, storage=Caller()), "differs from"),
        (with_value(1, type=TensorType(DType.INT8, (4,))), "differs from"),
        (replace(OTHER, methods=()), "0 methods, the program has 1"),
        (replace(OTHER, methods=(METHOD, METHOD)), "2 methods, the program has 1"),
        (replace(OTHER, recipe=""), "a name is empty"),
        (replace(OTHER, recipe="a\n"), "printed"),
        (replace(OTHER, delegates=(DELEGATE,)), r"\('one',\), \('one',\).*of its own"),
        (replace(OTHER, symbols=()), "its symbols are not the program's"),
        (replace(OTHER, symbols=(replace(SEQ, upper=9),)), "its symbols are not"),
        (replace(OTHER, symbols=(replace(SEQ, sizes=(9,)),)), r"buckets \[9\] of 1..8"),
        (replace(OTHER, delegates=()), "each needs one of its own"),
    ],
)
def test_a_variant_of_another_signature_is_refused(variant, text):
    with pytest.raises(BadProgram, match=text):
        verify_program(with_variants(variant), "m.kvc")


def test_the_code_of_a_variant_is_checked_as_all_code():
    less = replace(DELEGATE, backend="two", workspace_nbytes=0)
    wrong = replace(OTHER, delegates=(less,))
    with pytest.raises(BadProgram, match="variant 'other', delegate 0: a workspace"):
        verify_program(with_variants(wrong), "m.kvc")


def test_the_data_that_a_variant_uses_is_checked():
    values = (*GRAPH.values, Value(TensorType(DType.FLOAT32, (4,)), Constant(9)))
    wrong = changed(graph=replace(GRAPH, values=values))
    with pytest.raises(BadProgram, match="variant 'other', method 'forward'"):
        verify_program(with_variants(wrong), "m.kvc")


@pytest.mark.parametrize("sizes", [(2, 1), (2, 2), (0, 1), (8, 9)])
def test_buckets_that_do_not_ascend_within_bounds_are_refused(sizes):
    wrong = replace(PROGRAM, symbols=(replace(SEQ, sizes=sizes),))
    with pytest.raises(BadProgram, match=r"symbol 'seq': buckets .* of 1\.\.8"):
        verify_program(wrong, "m.kvc")


def test_buckets_are_few():
    wide = replace(SEQ, upper=100, sizes=tuple(range(1, MAX_BUCKETS + 2)))
    with pytest.raises(LimitExceeded, match="symbol 'seq': its buckets"):
        verify_program(replace(PROGRAM, symbols=(wide,)), "m.kvc")


@pytest.mark.parametrize(("count", "fits"), [(2, True), (3, False)])
def test_buckets_of_a_dim_together_are_few(count, fits):
    sizes = tuple(range(1, MAX_BUCKETS + 1))
    symbols = [Symbol(f"s{n}", 1, MAX_BUCKETS, sizes) for n in range(count)]
    total = affine(0, {symbol.name: 1 for symbol in symbols})
    check = CheckedTypes(symbols, Reporter("m.kvc"))
    if fits:
        check.check_dim(total, "value 0")
        return
    with pytest.raises(LimitExceeded, match="combinations of buckets in s0"):
        check.check_dim(total, "value 0")


def test_each_recipe_has_buckets_of_its_own():
    small, large = replace(SEQ, sizes=(1, 2)), replace(SEQ, sizes=(4, 8))
    variants = (replace(OTHER, symbols=(large,)),)
    program = replace(PROGRAM, symbols=(small,), variants=variants)
    verify_program(program, "m.kvc")
    found = decode(encode(program), "m.kvc")
    assert [body.symbols for body in found.bodies] == [(small,), (large,)]


def test_variants_are_few():
    many = [
        replace(OTHER, delegates=(replace(DELEGATE, backend=f"b{n}"),))
        for n in range(MAX_VARIANTS + 1)
    ]
    verify_program(with_variants(*many[:-1]), "m.kvc")
    with pytest.raises(LimitExceeded, match="the number of variants"):
        verify_program(with_variants(*many), "m.kvc")


def test_a_bundle_keeps_its_variants_when_it_is_split_and_joined(tmp_path):
    path = write_bundle(tmp_path / "m.kvc", (with_variants(OTHER), BYTES))
    verify_bundle(path)
    split_bundle(path, tmp_path / "s.kvc")
    join_bundle(tmp_path / "s.kvc", tmp_path / "j.kvc")
    with BundleFile.open(tmp_path / "j.kvc") as joined:
        assert joined.program.variants == (OTHER,)
    assert (tmp_path / "j.kvc").read_bytes() == path.read_bytes()
