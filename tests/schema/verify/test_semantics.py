from dataclasses import replace
from time import process_time

import pytest
from sample_programs import sample_program
from stateful_programs import session_program

from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram, FormatError, LimitExceeded
from kvc.schema.model import Blob, DataFile, NamedData
from kvc.schema.types import Affine, Symbol, TensorType, affine
from kvc.schema.uses import constants_of
from kvc.schema.verify import limits, verify_program

P = sample_program()
DECODE = P.methods[1]
F32 = DType.FLOAT32


def refuse(program, text, error=BadProgram):
    with pytest.raises(error, match=text) as caught:
        verify_program(program, "m.kvc")
    assert str(caught.value).startswith("m.kvc: ")


def test_the_sample_passes():
    verify_program(P, "m.kvc", thorough=True)


@pytest.mark.parametrize(
    "symbol",
    [
        Symbol("n", 3, 2),
        Symbol("n", -1, 2),
        Symbol("n", 0, 2**31),
        Symbol("", 1, 2),
        Symbol("a\nb", 1, 2),
    ],
)
def test_a_bad_symbol_is_refused(symbol):
    refuse(replace(P, symbols=(*P.symbols, symbol)), "symbol")


def test_two_symbols_of_one_name_are_refused():
    refuse(replace(P, symbols=(*P.symbols, *P.symbols)), "'seq' is there twice")


@pytest.mark.parametrize(
    "files",
    [
        (),
        (DataFile("x", b""),),
        (DataFile("", bytes(32)),),
        (*P.files, DataFile("a/b.kvd", bytes(32))),
        (*P.files, DataFile("..", bytes(32))),
        (*P.files, DataFile("a.kvd", b"")),
        (*P.files, DataFile("a.kvd", bytes(32)), DataFile("a.kvd", b"1" * 32)),
        (*P.files, DataFile("a.kvd", bytes(32)), DataFile("b.kvd", bytes(32))),
        (*P.files, DataFile("a.kvd", bytes(32))),  # no blob lies in it
    ],
)
def test_bad_data_files_are_refused(files):
    refuse(replace(P, files=files), "data files")


def test_a_data_file_with_a_blob_passes_and_one_twice_does_not():
    blobs = tuple(replace(blob, file=1 + i) for i, blob in enumerate(P.blobs))
    files = tuple(DataFile(f"{i}.kvd", bytes([i] * 32)) for i in range(3))
    passing = replace(P, files=(*P.files, *files), blobs=blobs)
    verify_program(passing, "m.kvc")
    for change, text in (
        ({"name": "0.kvd"}, "'0.kvd' is there twice"),
        ({"digest": files[0].digest}, "two have one digest"),
        ({"digest": bytes(31)}, "2.kvd: digest"),
    ):
        twice = (*P.files, *files[:2], replace(files[2], **change))
        refuse(replace(passing, files=twice), text)


def test_numbers_of_data_files_are_limited(monkeypatch):
    monkeypatch.setattr(limits, "MAX_FILES", 0)
    refuse(P, "number of data files", LimitExceeded)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"digest": b"short"}, BadProgram),
        ({"file": 1}, BadProgram),
        ({"nbytes": 2**41}, LimitExceeded),
        ({"offset": 2**63}, LimitExceeded),
        ({"align": 0}, BadProgram),
        ({"align": 3}, BadProgram),
        ({"align": 2**17}, BadProgram),
        ({"offset": 129}, BadProgram),
        ({"nbytes": 255}, BadProgram),
    ],
)
def test_a_bad_blob_is_refused(change, error):
    blobs = (replace(P.blobs[0], **change), *P.blobs[1:])
    with pytest.raises(error):
        verify_program(replace(P, blobs=blobs), "m.kvc")


def test_a_content_that_is_there_twice_is_refused():
    twice = replace(P.blobs[0], digest=P.blobs[1].digest, nbytes=P.blobs[1].nbytes)
    blobs = (twice, *P.blobs[1:])
    refuse(replace(P, blobs=blobs), "one digest and size")


def test_numbers_of_blobs_are_limited(monkeypatch):
    monkeypatch.setattr(limits, "MAX_BLOBS", 1)
    refuse(P, "number of blobs", LimitExceeded)


def test_a_blob_without_a_name_is_refused():
    extra = Blob(bytes(32), 8, 0, 1024, 64)
    refuse(replace(P, blobs=(*P.blobs, extra)), "blob 3 has no name")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "bias"}, "'bias' is there twice"),
        ({"name": ""}, "empty"),
        ({"name": "a\x1b[31m"}, "cannot be printed"),
        ({"name": "a\u202eb"}, "cannot be printed"),
        ({"name": "x" * 257}, "longer than 256"),
        ({"format": ""}, "empty"),
        ({"provenance": "\n"}, "cannot be printed"),
        ({"blob": 3}, "no blob 3|has no name"),
        ({"type": TensorType(F32, (8, 9))}, "takes 288 bytes, the blob has 256"),
        ({"type": TensorType(F32, (8, Affine(0, (("seq", 1),))))}, "not static"),
        ({"type": TensorType(F32, (-8, -8))}, "can be -8"),
        ({"type": TensorType(F32, (1,) * 9)}, "rank"),
        ({"type": TensorType(F32, (2**31,))}, "limit"),
        ({"type": TensorType(F32, (2**30, 2**30))}, "limit"),
    ],
)
def test_a_bad_name_is_refused(change, text):
    names = (replace(P.names[0], **change), *P.names[1:])
    refuse(replace(P, names=names), text, FormatError)


def test_packed_data_that_a_method_uses_is_refused():
    names = tuple(replace(named, format="x:1:2") for named in P.names)
    text = f"{names[1].name!r}.*it is packed, and only delegates may use it"
    without = tuple(replace(state, initial=None) for state in P.states)
    method = replace(P, names=(P.names[0], *names[1:]), states=without)
    refuse(method, text)


def test_packed_data_that_a_state_starts_as_is_refused():
    last = replace(P.names[-1], format="x:1:2")
    starts = replace(P.states[0], initial=len(P.names) - 1)
    states = replace(P, names=(*P.names[:-1], last), states=(starts, *P.states[1:]))
    refuse(states, f"{last.name!r}.*it is packed, and only delegates may use it")


def test_plain_data_behind_packed_data_is_refused():
    packed = replace(P.names[0], format="x:1:2")
    refuse(replace(P, names=(packed, *P.names[1:])), "after packed data")


def test_a_name_of_no_blob_is_refused():
    extra = replace(P.names[0], name="extra", blob=3)
    refuse(replace(P, names=(*P.names, extra)), "no blob 3")


def test_inputs_and_states_tell_every_size_of_a_call():
    program, _ = session_program((), cached=False)
    (method,) = program.methods
    (advance,) = method.advances
    more = replace(advance, tokens=affine(0, {"more": 1}))
    changed = replace(method, advances=(more,))
    symbols = (*program.symbols, Symbol("more", 1, 4))
    told = r"method 'write': no input or state determines the sizes \['more'\]"
    refuse(replace(program, symbols=symbols, methods=(changed,)), told)


def test_numbers_of_names_and_states_are_limited(monkeypatch):
    monkeypatch.setattr(limits, "MAX_NAMES", 2)
    refuse(P, "number of names", LimitExceeded)
    monkeypatch.undo()
    monkeypatch.setattr(limits, "MAX_STATES", 1)
    refuse(P, "number of states", LimitExceeded)


def test_the_name_that_is_there_twice_is_found_among_many():
    names = [*(f"n{i}" for i in range(200_000)), "n7"]
    start = process_time()
    with pytest.raises(BadProgram, match="'n7' is there twice"):
        limits.Reporter("x").unique(names, "names")
    assert process_time() - start < 10  # comparing each with each takes minutes


def test_a_metadata_key_must_be_printable():
    refuse(replace(P, metadata={"a\n": "1"}), "metadata")


def test_too_many_methods_are_refused():
    methods = tuple(replace(DECODE, name=f"m{i}") for i in range(65))
    refuse(replace(P, methods=methods, delegates=()), "limit of 64", LimitExceeded)


FILE = NamedData("files/a.txt", 0, TensorType(DType.UINT8, (256,)), "file", "file")


def with_file(**change):
    """The sample with a file whose bytes are those of the first blob."""
    return replace(P, names=(*P.names, replace(FILE, **change)))


def test_a_file_passes():
    verify_program(with_file(), "m.kvc", thorough=True)


@pytest.mark.parametrize(
    "name",
    ["a.txt", "files/", "files/a/b", "files/../a", "files/.a", "Files/a", "files/a b"],
)
def test_a_file_whose_name_is_not_plain_is_refused(name):
    refuse(with_file(name=name), "whose name must be files/ and a plain file name")


@pytest.mark.parametrize(
    "kind",
    [
        TensorType(DType.INT8, (256,)),
        TensorType(DType.UINT8, (16, 16)),
        TensorType(F32, (64,)),
    ],
)
def test_a_file_that_is_not_bytes_is_refused(kind):
    refuse(with_file(type=kind), r"whose type must be uint8 \[n\]")


def test_a_file_of_another_size_than_its_blob_is_refused():
    refuse(with_file(type=TensorType(DType.UINT8, (255,))), "the blob has 256")


def test_two_files_of_one_name_are_refused():
    refuse(replace(P, names=(*P.names, FILE, FILE)), "'files/a.txt' is there twice")


def test_a_file_behind_packed_data_is_refused():
    packed = replace(FILE, name="packed/1", format="x:1:2")
    refuse(replace(P, names=(*P.names, packed, FILE)), "after packed data")


def test_a_file_that_a_method_uses_is_refused():
    used = constants_of(DECODE.graph)
    names = list(P.names)
    for name in used:
        named = names[name]
        kind = TensorType(DType.UINT8, (P.blobs[named.blob].nbytes,))
        names[name] = replace(named, name=f"files/{name}", format="file", type=kind)
    refuse(replace(P, names=tuple(names)), "nothing may compute with it")


def test_a_file_that_a_state_starts_as_is_refused():
    starts = replace(P.states[0], initial=len(P.names))
    program = replace(with_file(), states=(starts, *P.states[1:]))
    refuse(program, "nothing may compute with it")


def test_a_file_that_a_delegate_uses_is_refused():
    assert P.delegates, "the sample has a delegate"
    part = replace(P.delegates[0], names=(*P.delegates[0].names, len(P.names)))
    program = replace(with_file(), delegates=(part, *P.delegates[1:]))
    refuse(program, "nothing may compute with it")
