"""That every byte of every file is checked, once."""

from collections import Counter
from pathlib import Path

import pytest
from named_bytes import save_data

from kvc.schema.container import OpenFile, bundle_file, verify_bundle, verify_data_file
from kvc.schema.errors import FormatError

X, Y = b"x" * 5000, b"y" * 5000


@pytest.fixture
def files(tmp_path):
    """A bundle and two data files, both with a content that it takes from the first."""
    first = save_data(tmp_path / "a.kvc", {"x": X}, external=True).data_path
    second = save_data(tmp_path / "b.kvc", {"x": X, "y": Y}, external=True).data_path
    path = tmp_path / "m.kvc"
    save_data(path, {"x": X, "y": Y, "own": b"own"}, reuse=[first, second])
    return path, Path(first), Path(second)


def test_a_byte_anywhere_in_any_of_the_files_is_found(files):
    path, *data = files
    for file in (path, *data):
        raw = file.read_bytes()
        for position in range(0, len(raw), 97):
            changed = bytearray(raw)
            changed[position] ^= 1
            file.write_bytes(changed)
            with pytest.raises(FormatError):
                verify_bundle(path)
        file.write_bytes(raw)
    verify_bundle(path)


def test_what_the_bundle_calls_a_blob_is_said_only_of_the_file_it_takes_it_from(files):
    path, first, second = files
    for file, text in ((second, "blob 0 is damaged"), (first, "x is damaged")):
        whole = file.read_bytes()
        raw = bytearray(whole)
        raw[4100] ^= 1
        file.write_bytes(raw)
        with pytest.raises(FormatError, match=text):
            verify_bundle(path)
        file.write_bytes(whole)


def test_each_data_file_is_read_once(files, monkeypatch):
    path, *data = files
    read, original = Counter(), OpenFile.pread_into

    def counted(self, offset, view):
        read[self.path] += view.nbytes
        original(self, offset, view)

    monkeypatch.setattr(OpenFile, "pread_into", counted)
    verify_bundle(path)
    for file in data:
        assert read[str(file)] <= file.stat().st_size
    read.clear()
    verify_data_file(data[0])
    assert read[str(data[0])] == data[0].stat().st_size


def test_memory_is_checked_by_brute_force_too(files, monkeypatch):
    thoroughness, original = [], bundle_file.verify_program

    def watched(program, path, thorough):
        thoroughness.append(thorough)
        original(program, path, thorough)

    monkeypatch.setattr(bundle_file, "verify_program", watched)
    verify_bundle(files[0])
    assert thoroughness == [True]
