"""Bundles and sessions that were made to mislead: refused, or run without harm."""

import ast
import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import compared_lists
import libkvc_mutations
import numpy as np
import pytest
from libkvc import CBundle, Refused
from libkvc_models import kind_bundle, save
from ring_models import RingDecoder, Shape, ring_methods
from sealing import parts, seal

from kvc.runtime import load
from kvc.schema.codec.records import TableReader

LEAD = struct.Struct("<8sIQ")
TOKENS = np.array([[1, 2, 3]])


@pytest.fixture(scope="module")
def linear(tmp_path_factory) -> Path:
    return kind_bundle("linear", tmp_path_factory.mktemp("linear") / "model.kvc")


@pytest.fixture(scope="module")
def rings(tmp_path_factory) -> Path:
    shape = Shape(windows=(5, None), slots=24, length=128)
    path = tmp_path_factory.mktemp("rings") / "model.kvc"
    return save(RingDecoder(shape), ring_methods(shape.longest), path)


def played(path: Path, seed: int, count: int, folder: Path, part: str) -> dict:
    """Run mutated bundles in a process of its own; it has to end by itself."""
    program = libkvc_mutations.__file__
    arguments = map(str, (path, seed, count, folder, part))
    run = [sys.executable, program, *arguments]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = ast.literal_eval(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("part", ["all", "lists"])
def test_mutated_bundles_do_no_harm(part, rings, tmp_path):
    found = played(rings, 1, 150, tmp_path, part)
    assert sum(found.values()) == 150
    assert found["DAMAGED"] > 30
    assert found.get("OK", 0) > 0 or part == "all"


@pytest.mark.parametrize("bundle", ["linear", "rings"])
def test_python_and_c_agree_on_changed_lists(bundle, request, tmp_path):
    path = request.getfixturevalue(bundle)
    run = [sys.executable, compared_lists.__file__, "5", "0", "40", tmp_path, path]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = ast.literal_eval(done.stdout.split(": ", 1)[1])
    assert sum(found.values()) == 40
    assert found["both refuse"] > 15
    assert found["both accept"] > 3


def changed(path: Path, column: str, place: int, number: int, in_list: bool) -> bytes:
    """Return a bundle with one number of its bound lists changed."""
    blobs, program = parts(path)
    table = TableReader.root(program, "Program").child("bounds")
    if in_list:
        table = table.children("lists")[-1]
    size = table.vector(column).dtype.itemsize
    at = table.place(column)
    start = at + int.from_bytes(program[at : at + 4], "little") + 4 + size * place
    new = (number % (1 << 8 * size)).to_bytes(size, "little")
    return seal(blobs, program[:start] + new + program[start + size :])


FAR = (1 << 32) - 1


@pytest.mark.parametrize(
    ("column", "number", "in_list", "match"),
    [
        ("term_factors", 1 << 62, False, "out of range"),
        ("term_products", FAR, False, "out of range"),
        ("product_symbols", FAR, False, "out of range"),
        ("term_ends", FAR, False, "runs"),
        ("product_ends", FAR, False, "runs"),
        ("layout_ends", FAR, False, "runs"),
        ("term_factors", 0, False, "out of range"),
        ("product_ends", 0, False, "no factors|runs"),
        ("lowers", -1, True, "no sizes"),
        ("uppers", 1 << 31, True, "no sizes"),
        ("layout_dims", FAR, False, "out of range"),
        ("layout_strides", FAR, False, "out of range"),
        ("layout_dtypes", 200, False, "unknown dtype"),
        ("operand_regions", 9, False, "unknown region"),
        ("operand_regions", 5, False, "caller's array"),
        ("operand_offsets", FAR, False, "no form"),
        ("operand_layouts", FAR, False, "unknown layout"),
        ("step_kernels", FAR, True, "out of range"),
        ("operand_ends", FAR, True, "runs"),
        ("integer_ends", FAR, True, "runs"),
        ("number_ends", FAR, True, "runs"),
        ("operands", FAR, True, "out of range"),
        ("inputs", FAR, True, "out of range"),
        ("outputs", FAR, True, "out of range"),
        ("cursor_fields", FAR, True, "out of range"),
        ("cursor_counts", FAR, True, "out of range"),
    ],
)
def test_each_number_of_a_list_is_checked(
    column, number, in_list, match, linear, tmp_path
):
    path = tmp_path / "changed.kvc"
    path.write_bytes(changed(linear, column, 0, number, in_list))
    with pytest.raises(Refused, match=match) as refused:
        CBundle(path)
    assert refused.value.code == "DAMAGED"


def test_a_region_that_is_the_only_one_has_no_number(linear, tmp_path):
    _, program = parts(linear)
    bounds = TableReader.root(program, "Program").child("bounds")
    place = int(np.argmax(bounds.vector("operand_regions") == 3))
    path = tmp_path / "changed.kvc"
    path.write_bytes(changed(linear, "operand_places", place, 1, False))
    with pytest.raises(Refused, match="the only one") as refused:
        CBundle(path)
    assert refused.value.code == "DAMAGED"


def test_an_operand_outside_of_its_memory_is_refused_before_the_call(linear, tmp_path):
    _, program = parts(linear)
    bounds = TableReader.root(program, "Program").child("bounds")
    constants, path = bounds.vector("form_constants"), tmp_path / "changed.kvc"
    used = bounds.vector("operand_offsets")[bounds.vector("operand_regions") == 3]
    place = int(used[np.argmax(constants[used])])
    path.write_bytes(changed(linear, "form_constants", place, 1 << 30, False))
    with CBundle(path) as bundle, bundle.session() as session:
        with pytest.raises(Refused, match="lies outside of its memory") as refused:
            session.call("prefill", TOKENS)
        assert refused.value.code == "DAMAGED"


@pytest.mark.parametrize("kernel", ["call", "ask"])
def test_a_list_may_not_call_addresses(kernel, linear, tmp_path):
    blobs, program = parts(linear)
    bounds = TableReader.root(program, "Program").child("bounds")
    place = next(
        at for at in bounds._targets("kernels") if program[at] > len(kernel) + 4
    )
    name = kernel.encode().ljust(program[place], b"\0")
    other = program[: place + 4] + name + program[place + 4 + len(name) :]
    path = tmp_path / "changed.kvc"
    path.write_bytes(seal(blobs, other))
    with pytest.raises(Refused, match=r"unknown kernel|no UTF-8"):
        CBundle(path)


def rewritten(raw: bytes, changes: Mapping[str, object], tail: bytes = b"") -> bytes:
    """Return the file of a session with other parts of its header."""
    magic, version, nbytes = LEAD.unpack(raw[: LEAD.size])
    header = json.loads(raw[LEAD.size : LEAD.size + nbytes])
    for name, value in changes.items():
        header[name] = value
        if value is None and name != "capacity":
            del header[name]
    text = json.dumps(header).encode()
    states = raw[LEAD.size + nbytes : -32] + tail
    made = LEAD.pack(magic, version, len(text)) + text + states
    return made + hashlib.sha256(made).digest()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"program": "ab" * 32}, "it is of program abab"),
        ({"program": "\ud800x" * 9}, r"it is of program \?\?\?"),
        ({"sizes": {}}, "sizes"),
        ({"sizes": {"capacity": 1}}, r"expected 2\.\.48"),
        ({"sizes": {"depth": 1}}, "a size that the program has not"),
        ({"capacity": 47}, "another capacity"),
        ({"capacity": -1}, "no count"),
        ({"position": [2]}, "states another position"),
        ({"position": [1, 2]}, "states another position"),
        ({"counted": [0, 0]}, "counted is no list of 1"),
        ({"others": [[1]]}, "others"),
        ({"lengths": [0]}, "lengths is no list of 3"),
        ({"lengths": [1, 1, 1]}, "impossible length"),
        ({"written": 4}, "states are not the program's"),
        ({"written": 1 << 63}, "no count"),
        ({"reached": [3]}, "the program has none"),
        ({"states": []}, "states are not the program's"),
        ({"pending": [[1], [2]]}, "pending has another number of rows"),
        ({"pending": [[-1]]}, "no count"),
        ({"attached": []}, "attached is no object"),
        ({"adapters": [["name", "digest", 1.0]]}, "which this library does not load"),
        ({"other": 1}, "other parts"),
        ({"written": None}, "lacks written"),
    ],
)
def test_each_part_of_a_saved_session_is_checked(changes, match, linear, tmp_path):
    with load(linear) as program, program.session() as session:
        session.prefill(TOKENS)
        session.save(tmp_path / "good.kvs")
    raw = (tmp_path / "good.kvs").read_bytes()
    (tmp_path / "bad.kvs").write_bytes(rewritten(raw, changes))
    with CBundle(linear) as bundle:
        bundle.restore(tmp_path / "good.kvs").close()
        with pytest.raises(Refused, match=match) as refused:
            bundle.restore(tmp_path / "bad.kvs")
        assert refused.value.code == "BAD_SNAPSHOT"


def test_damaged_sessions(linear, tmp_path):
    with CBundle(linear) as bundle, bundle.session() as session:
        session.call("prefill", TOKENS)
        session.save(tmp_path / "good.kvs", '{"a": 1}', [4, 5])
        restored = bundle.restore(tmp_path / "good.kvs")
        assert restored.attached() == ('{"a": 1}', [4, 5])
        restored.close()
        raw = (tmp_path / "good.kvs").read_bytes()
        for content, match in (
            (b"", "not a saved session"),
            (raw[:40], "cut short"),
            (raw[:-1], "digest"),
            (raw[:60] + b"?" + raw[61:], "digest"),
            (rewritten(raw, {}, bytes(4)), "another number of bytes"),
        ):
            (tmp_path / "bad.kvs").write_bytes(content)
            with pytest.raises(Refused, match=match) as refused:
                bundle.restore(tmp_path / "bad.kvs")
            assert refused.value.code == "BAD_SNAPSHOT"
        with pytest.raises(Refused, match="JSON object") as refused:
            session.save(tmp_path / "bad.kvs", "[1]")
        with pytest.raises(Refused, match="no file can be made") as refused:
            session.save(tmp_path / "no" / "folder")
        assert refused.value.code == "CANNOT_WRITE"
