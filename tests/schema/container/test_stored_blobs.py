import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from named_bytes import SMALL, read_blobs, save_data
from sample_programs import SAMPLE_BLOBS, write_sample
from sealing import parts, seal

from kvc.schema.codec import encode
from kvc.schema.container import BundleFile, StoredBlobs, verify_bundle
from kvc.schema.errors import (
    BadProgram,
    BadStructure,
    DigestMismatch,
    FileChanged,
    FileProblem,
    Truncated,
)

MIB = 1 << 20
LARGE = {"large": bytes(range(251)) * 40_000, "small": b"x"}  # ten leaves
UNIQUE = [SMALL["a"], b"", SMALL["page"], SMALL["last"]]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


def open_stored(path, folders=()):
    return StoredBlobs.open(BundleFile(path), folders)


@pytest.mark.parametrize("external", [False, True])
def test_blobs_come_back_in_all_three_ways(path, external):
    save_data(path, SMALL | LARGE, external=external)
    expected = [*UNIQUE, LARGE["large"], b"x"]
    with open_stored(path) as stored:
        for blob, raw in enumerate(expected):
            target = bytearray(len(raw))
            stored.read_into(blob, memoryview(target))
            stored.check(blob)
            assert target == raw
            assert b"".join(bytes(part) for part in stored.chunks(blob)) == raw
        assert len(stored.files) == 1 + external
        stored.check_unchanged()


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("where", [0, 5 * MIB, 10_039_999])
def test_a_damaged_blob_is_named_in_all_three_ways_and_others_are_not(
    path, external, where
):
    saved = save_data(path, LARGE, external=external)
    blob = saved.program.blobs[0]
    damaged = Path(saved.data_path or path)
    with damaged.open("r+b") as file:
        file.seek(blob.offset + where)
        file.write(b"\xff")
    with open_stored(path) as stored:
        stored.check(1)
        for use in (
            lambda: stored.check(0),
            lambda: stored.read_into(0, memoryview(bytearray(blob.nbytes))),
            lambda: list(stored.chunks(0)),
        ):
            with pytest.raises(DigestMismatch, match="large is damaged") as caught:
                use()
            assert caught.value.path == str(damaged)
    with pytest.raises(DigestMismatch):
        verify_bundle(path)


def test_of_many_names_of_a_blob_a_message_has_the_first(path):
    save_data(path, {f"norm.{n}": b"the same" for n in range(5)})
    with open_stored(path) as stored:
        assert stored.describe(0) == "norm.0 = norm.1 = norm.2 and 2 more"


@pytest.mark.parametrize("external", [False, True])
def test_padding_before_a_blob_is_checked_with_it(path, external):
    saved = save_data(path, SMALL, external=external)
    with Path(saved.data_path or path).open("r+b") as file:
        file.seek(saved.program.blobs[2].offset - 1)
        file.write(b"\1")
    with open_stored(path) as stored:
        stored.check(0)
        stored.check(3)
        for use in (lambda: stored.check(2), lambda: list(stored.chunks(2))):
            with pytest.raises(BadStructure, match="padding"):
                use()


def test_what_was_read_is_what_was_checked(path, monkeypatch):
    """A file that changes after the reading must not pass by its old bytes."""
    save_data(path, LARGE)
    target = bytearray(len(LARGE["large"]))
    with open_stored(path) as stored:
        original = type(stored.files[0]).pread_into

        def changing(self, offset, view):
            original(self, offset, view)
            if view.nbytes == MIB:  # a leaf, not padding
                view[0] ^= 1

        monkeypatch.setattr(type(stored.files[0]), "pread_into", changing)
        with pytest.raises(DigestMismatch):
            stored.read_into(0, memoryview(target))


def test_a_file_cut_short_under_it_is_an_error_of_either_thread(path):
    saved = save_data(path, LARGE, external=True)
    before = set(threading.enumerate())
    with open_stored(path) as stored:
        os.truncate(saved.data_path, saved.data_nbytes // 2)
        with pytest.raises(Truncated):
            stored.check(0)
        with pytest.raises(FileChanged, match="kvd changed"):
            stored.check_unchanged()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ESTALE, FileChanged), (errno.EIO, FileProblem)]
)
def test_a_server_that_has_the_file_no_more_is_told(path, monkeypatch, code, error):
    save_data(path, SMALL)

    def refuse(fd):
        raise OSError(code, os.strerror(code))

    with open_stored(path) as stored:
        monkeypatch.setattr(os, "fstat", refuse)
        with pytest.raises(error, match=r"model\.kvc"):
            stored.check_unchanged()
        monkeypatch.undo()


def test_without_a_second_thread_one_does_it_all(path, monkeypatch):
    save_data(path, LARGE)

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    verify_bundle(path)


def test_closing_twice_is_fine_and_errors_leave_no_descriptor(path, tmp_path):
    saved = save_data(path, SMALL, external=True)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    stored = open_stored(path)
    stored.close()
    stored.close()
    damaged = Path(saved.data_path)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    for _ in range(3):
        with pytest.raises(Truncated):
            open_stored(path)
    assert len(list(descriptors.iterdir())) == before


@pytest.mark.parametrize(
    "change",
    [
        {"digest": bytes(32)},
        {"nbytes": 2},
        {"offset": 8512},
        {"align": 32},
        {"file": 0},
    ],
)
def test_a_program_that_says_other_than_the_index_is_refused(path, change):
    program = save_data(path, SMALL, external=True).program
    blobs = (*program.blobs[:3], replace(program.blobs[3], **change))
    named = program.names
    if change == {"nbytes": 2}:
        short = replace(named[4], type=replace(named[4].type, dims=(2,)))
        named = (*named[:4], short)
    changed = replace(program, blobs=blobs, names=named)
    path.write_bytes(seal(parts(path)[0], encode(changed)))
    with pytest.raises(BadProgram, match="blob 3"):
        open_stored(path)


def test_the_sample_reads_back(path):
    write_sample(path)
    assert read_blobs(path) == list(SAMPLE_BLOBS)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.binary(max_size=5000), max_size=8), st.booleans())
def test_any_contents_come_back(tmp_path_factory, raws, external):
    path = tmp_path_factory.mktemp("any") / "m.kvc"
    save_data(path, {str(i): raw for i, raw in enumerate(raws)}, external=external)
    assert read_blobs(path) == list(dict.fromkeys(raws))
    verify_bundle(path)
