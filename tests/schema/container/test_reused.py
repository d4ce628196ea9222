"""Blobs of other bundles' data files, referred to rather than written again."""

from dataclasses import replace
from pathlib import Path

import pytest
from named_bytes import SMALL, names, read_blobs, save_data
from sealing import parts, seal_data

from kvc.schema.codec import decode_index, encode_index
from kvc.schema.container import BundleFile, check_reuse, reused, verify_bundle
from kvc.schema.errors import CannotWrite, DigestMismatch, FileProblem, WrongKind

NEW = SMALL | {"new": b"new bytes"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


def contents_of(path):
    """What a bundle holds, by name."""
    blobs = read_blobs(path)
    with BundleFile(path) as bundle:
        return {named.name: blobs[named.blob] for named in bundle.program.names}


def test_blobs_of_another_data_file_are_referred_to(path, tmp_path):
    base = save_data(tmp_path / "base.kvc", SMALL, external=True)
    saved = save_data(path, NEW, external=True, reuse=[base.data_path])
    assert [Path(base.data_path).name] == [f.name for f in saved.program.files[2:]]
    assert [blob.file for blob in saved.program.blobs] == [2, 2, 2, 2, 1]
    assert saved.data_nbytes < 1000
    assert contents_of(path) == NEW
    verify_bundle(path)


def test_only_files_that_are_used_are_named(path, tmp_path):
    first = save_data(tmp_path / "first.kvc", {"x": b"not used"}, external=True)
    base = save_data(tmp_path / "base.kvc", SMALL, external=True)
    reuse = [first.data_path, base.data_path, base.data_path]
    saved = save_data(path, SMALL, external=True, reuse=reuse)
    assert saved.data_path is None
    assert [f.name for f in saved.program.files] == ["", Path(base.data_path).name]
    assert contents_of(path) == SMALL


def test_a_bundle_with_its_own_blobs_may_reuse_others(path, tmp_path):
    base = save_data(tmp_path / "base.kvc", SMALL, external=True)
    saved = save_data(path, NEW, reuse=[base.data_path])
    assert [blob.file for blob in saved.program.blobs] == [1, 1, 1, 1, 0]
    assert contents_of(path) == NEW


def test_a_damaged_blob_is_not_referred_to(path, tmp_path):
    base = Path(save_data(tmp_path / "base.kvc", SMALL, external=True).data_path)
    raw = bytearray(base.read_bytes())
    raw[130] ^= 1
    base.write_bytes(raw)
    with pytest.raises(DigestMismatch):
        save_data(path, NEW, reuse=[base])
    assert save_data(path, {"x": SMALL["page"]}, reuse=[base]).program.files[1:]
    assert not path.with_suffix(".tmp").exists()


def test_what_cannot_be_reused_is_refused(path, tmp_path):
    bundle = tmp_path / "base.kvc"
    base = Path(save_data(bundle, SMALL, external=True).data_path)
    other = tmp_path / "other"
    other.mkdir()
    more = Path(save_data(other / "base.kvc", NEW, external=True).data_path)
    more.rename(other / base.name)
    strange = tmp_path / "not plain.kvd"
    strange.write_bytes(base.read_bytes())
    for reuse, error, text in (
        ([bundle], WrongKind, "a kvc bundle"),
        ([tmp_path / "none.kvd"], FileProblem, "No such file"),
        ([base, other / base.name], CannotWrite, "its name is taken"),
        ([strange], CannotWrite, "not plain"),
    ):
        with pytest.raises(error, match=text):
            save_data(path, NEW, reuse=reuse)
    assert not path.exists()


def test_a_file_that_goes_while_it_is_opened_is_not_referred_to(
    path, tmp_path, monkeypatch
):
    base = save_data(tmp_path / "base.kvc", SMALL, external=True).data_path
    monkeypatch.setattr(reused, "names_file", lambda *_: False)
    with pytest.raises(FileProblem, match="it was removed or replaced"):
        save_data(path, NEW, reuse=[base])

    def refuses(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(reused, "names_file", refuses)
    with pytest.raises(FileProblem, match="Permission denied"):
        save_data(path, NEW, reuse=[base])
    assert not path.exists()


def test_a_second_name_of_a_reused_file_is_not_written_over(path, tmp_path):
    base = Path(save_data(tmp_path / "base.kvc", SMALL, external=True).data_path)
    path.hardlink_to(base)
    with pytest.raises(CannotWrite, match="a data file is there"):
        save_data(path, NEW, reuse=[base])
    assert path.samefile(base)
    other = tmp_path / "other.kvc"
    second = tmp_path / "second.kvd"
    second.hardlink_to(base)
    saved = save_data(other, NEW, reuse=[second, base])  # one file, by its first name
    assert [file.name for file in saved.program.files] == ["", second.name]
    assert contents_of(other) == NEW


def test_what_cannot_be_reused_is_told_before_the_work_in_the_same_words(tmp_path):
    base = Path(save_data(tmp_path / "base.kvc", SMALL, external=True).data_path)
    strange = tmp_path / "not plain.kvd"
    strange.write_bytes(base.read_bytes())
    check_reuse([base, base], tmp_path / "model.kvc")
    with pytest.raises(CannotWrite, match=r"model\.kvc.*not plain"):
        check_reuse([strange], tmp_path / "model.kvc")


def test_a_blob_of_the_digest_but_another_size_is_another(path, tmp_path):
    """An index may say what it likes."""
    base = Path(
        save_data(tmp_path / "base.kvc", {"a": b"1234"}, external=True).data_path
    )
    blobs, index = parts(base)
    (entry,) = decode_index(index, "x")
    base.write_bytes(seal_data(blobs, encode_index([replace(entry, nbytes=5)])))
    saved = save_data(path, {"a": b"1234"}, reuse=[base])
    assert len(saved.program.files) == 1


def test_a_single_path_is_not_taken_apart(path, tmp_path):
    base = save_data(tmp_path / "base.kvc", SMALL, external=True)
    saved = save_data(path, SMALL, reuse=base.data_path)
    assert len(saved.program.files) == 2
    assert path.name in names(tmp_path)
