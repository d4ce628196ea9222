"""Packed data: a data file of its own, which may be left behind."""

from dataclasses import replace
from pathlib import Path

import pytest
from named_bytes import SMALL, data_program, names, read_blobs, save_data

from kvc.schema.container import (
    BundleFile,
    Content,
    StoredBlobs,
    collect_garbage,
    join_bundle,
    save_bundle,
    split_bundle,
    verify_bundle,
)
from kvc.schema.errors import BadProgram, CannotWrite, DataFileMissing

PACKED = {"packed/1": b"one " * 3000, "packed/2": b"two"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


def save_packed(path, plain=SMALL, packed=PACKED, **options):
    """Write a bundle of named bytes, the last of them packed."""
    both = plain | packed
    program = data_program(both)
    entries = [
        replace(named, format="x:1:2") if named.name in packed else named
        for named in program.names
    ]

    def content(name):
        raw = both[entries[name].name]
        return Content(len(raw), lambda: iter([memoryview(raw)]), name)

    options.setdefault("packed_apart", True)
    return save_bundle(path, replace(program, names=tuple(entries)), content, **options)


def contents(path):
    """Return the bytes of each name of a bundle."""
    with BundleFile(path) as bundle:
        entries = bundle.program.names
    blobs = read_blobs(path)
    return {named.name: blobs[named.blob] for named in entries}


def test_packed_data_lies_apart_and_the_rest_where_it_would(path, tmp_path):
    saved = save_packed(path)
    assert contents(path) == SMALL | PACKED
    assert saved.data_path is None
    assert Path(saved.packed_path).stat().st_size == saved.packed_nbytes
    assert names(tmp_path) == sorted([path.name, Path(saved.packed_path).name])
    assert saved.nbytes == path.stat().st_size
    verify_bundle(path)


def test_plain_data_may_be_external_too(path, tmp_path):
    saved = save_packed(path, external=True)
    assert contents(path) == SMALL | PACKED
    plain, packed = Path(saved.data_path), Path(saved.packed_path)
    assert names(tmp_path) == sorted([path.name, plain.name, packed.name])
    plain_alone = save_data(tmp_path / "model.kvc", SMALL, external=True)
    assert plain_alone.data_path == str(plain)
    assert not plain_alone.data_is_new


def test_without_the_wish_it_lies_with_the_rest(path, tmp_path):
    save_packed(path, packed_apart=False)
    assert names(tmp_path) == [path.name]
    assert contents(path) == SMALL | PACKED


def test_what_is_plain_already_is_not_stored_again(path, tmp_path):
    saved = save_packed(path, packed={"packed/1": SMALL["a"]})
    assert saved.packed_path is None
    assert names(tmp_path) == [path.name]
    assert contents(path)["packed/1"] == SMALL["a"]
    save_packed(path, packed={"packed/1": SMALL["a"], **PACKED})
    assert contents(path) == SMALL | {"packed/1": PACKED["packed/1"], **PACKED}
    verify_bundle(path)


def test_a_packed_file_is_reused(path, tmp_path):
    first = save_packed(path)
    again = save_packed(tmp_path / "other.kvc", reuse=[first.packed_path])
    assert again.packed_path is None
    assert contents(tmp_path / "other.kvc") == SMALL | PACKED


def test_when_the_bundle_fails_both_data_files_go(path, tmp_path, monkeypatch):
    def refused(*_):
        raise CannotWrite(path=str(path), reason="refused")

    monkeypatch.setattr("kvc.schema.container.temporary.AtomicFile.commit", refused)
    with pytest.raises(CannotWrite, match="refused"):
        save_packed(path, external=True)
    assert names(tmp_path) == []


def test_gc_keeps_the_packed_file_of_a_bundle(path, tmp_path):
    saved = save_packed(path)
    assert collect_garbage(tmp_path).removed == ()
    path.unlink()
    (gone,) = collect_garbage(tmp_path).removed
    assert gone.name == Path(saved.packed_path).name


def test_a_missing_packed_file_is_missed_only_by_its_blobs(path):
    Path(save_packed(path).packed_path).unlink()
    with StoredBlobs.open(BundleFile(path)) as stored:
        stored.check_unchanged()
        for named in stored.program.names:
            if named.name in SMALL:
                stored.check(named.blob)
                continue
            nbytes = stored.program.blobs[named.blob].nbytes
            target = memoryview(bytearray(nbytes))
            for ask in (
                lambda blob: stored.check(blob),
                lambda blob, target=target: stored.read_into(blob, target),
                lambda blob: list(stored.chunks(blob)),
            ):
                with pytest.raises(DataFileMissing, match=r"model-[0-9a-f]+\.kvd"):
                    ask(named.blob)


def test_an_empty_blob_of_a_missing_file_is_missing_too(path):
    plain = {name: raw for name, raw in SMALL.items() if raw}
    packed = {"packed/1": b"one", "packed/2": b""}
    Path(save_packed(path, plain, packed).packed_path).unlink()
    with StoredBlobs.open(BundleFile(path)) as stored:
        blob = stored.program.names[-1].blob
        with pytest.raises(DataFileMissing):
            stored.check(blob)
        with pytest.raises(DataFileMissing):
            stored.read_into(blob, memoryview(bytearray()))


def test_verify_misses_it(path):
    Path(save_packed(path).packed_path).unlink()
    with pytest.raises(DataFileMissing):
        verify_bundle(path)


def test_a_missing_file_with_anything_plain_is_an_error(path, tmp_path):
    base = save_data(tmp_path / "base.kvc", {"w": PACKED["packed/1"]}, external=True)
    save_packed(path, SMALL | {"w": PACKED["packed/1"]}, reuse=[base.data_path])
    Path(base.data_path).unlink()
    with pytest.raises(DataFileMissing):
        StoredBlobs.open(BundleFile(path))


@pytest.mark.parametrize("there", [True, False])
def test_split_and_join(path, tmp_path, there):
    saved = save_packed(path)
    if not there:
        Path(saved.packed_path).unlink()
    joined, expected = tmp_path / "joined.kvc", tmp_path / "expected.kvc"
    split = split_bundle(path, tmp_path / "small.kvc")
    assert split.packed_path is None, "it stays where it is, if anywhere"
    assert contents(tmp_path / "small.kvc") == SMALL | (PACKED if there else {})
    join_bundle(tmp_path / "small.kvc", joined)
    save_packed(expected, packed=PACKED if there else {}, packed_apart=False)
    assert joined.read_bytes() == expected.read_bytes()


def test_splitting_to_another_folder_takes_the_packed_file_along(path, tmp_path):
    first = save_packed(path)
    other = tmp_path / "other"
    other.mkdir()
    split = split_bundle(path, other / "model.kvc")
    ours, theirs = Path(split.packed_path), Path(first.packed_path)
    assert ours.parent == other
    assert ours.read_bytes() == theirs.read_bytes()
    assert contents(other / "model.kvc") == SMALL | PACKED


def test_plain_data_behind_packed_data_is_refused(path):
    both = {"a": b"1", "packed/1": b"2", "b": b"3"}
    with pytest.raises(BadProgram, match=r"'b'.*after packed data"):
        save_packed(path, both, {"packed/1": b"2"})
