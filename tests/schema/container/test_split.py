from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from named_bytes import SMALL, names, read_blobs, save_data
from sample_programs import write_sample

from kvc.schema.container import BundleFile, join_bundle, split_bundle, verify_bundle
from kvc.schema.errors import DataFileMissing, DigestMismatch


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


def files(folder):
    """The content of each file in a folder, by name."""
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.fixture
def apart(tmp_path):
    folder = tmp_path / "apart"
    folder.mkdir()
    return folder


def test_split_gives_what_saving_with_external_data_gives(path, apart):
    save_data(path, SMALL)
    save_data(apart / path.name, SMALL, external=True)
    expected = files(apart)
    split_bundle(path)
    found = {path.name: path.read_bytes(), **files(path.parent / "apart")}
    assert found == expected
    assert sorted(files(apart)) == [n for n in names(path.parent) if n != "apart"]


def test_join_gives_the_bundle_that_was_split(path, tmp_path):
    save_data(path, SMALL)
    before = path.read_bytes()
    split_bundle(path, tmp_path / "small.kvc")
    assert path.read_bytes() == before
    join_bundle(tmp_path / "small.kvc", tmp_path / "joined.kvc")
    assert (tmp_path / "joined.kvc").read_bytes() == before


def test_a_bundle_with_methods_goes_there_and_back(path, apart):
    write_sample(path)
    split_bundle(path, apart / path.name)
    verify_bundle(apart / path.name)
    join_bundle(apart / path.name, apart / "joined.kvc")
    assert (apart / "joined.kvc").read_bytes() == path.read_bytes()


def test_splitting_what_is_split_changes_nothing(path, tmp_path):
    save_data(path, SMALL, external=True)
    before = files(tmp_path)
    assert split_bundle(path).data_path is None
    assert files(tmp_path) == before


def test_splitting_to_another_folder_takes_all_blobs_along(path, apart):
    save_data(path, SMALL, external=True)
    saved = split_bundle(path, apart / "other.kvc")
    assert Path(saved.data_path).parent == apart
    assert read_blobs(apart / "other.kvc") == read_blobs(path)


def test_joining_over_itself(path):
    save_data(path, SMALL, external=True)
    join_bundle(path, path)
    with BundleFile(path) as bundle:
        assert len(bundle.program.files) == 1
    verify_bundle(path)


def test_several_data_files_are_joined(path, tmp_path):
    base = save_data(tmp_path / "base.kvc", SMALL, external=True)
    more = SMALL | {"more": b"more"}
    save_data(path, more, external=True, reuse=[base.data_path])
    join_bundle(path, tmp_path / "joined.kvc")
    save_data(tmp_path / "expected.kvc", more)
    joined = (tmp_path / "joined.kvc").read_bytes()
    assert joined == (tmp_path / "expected.kvc").read_bytes()


def test_data_files_are_looked_for_in_other_folders(path, tmp_path, apart):
    data = Path(save_data(path, SMALL, external=True).data_path)
    data.rename(apart / data.name)
    with pytest.raises(DataFileMissing):
        join_bundle(path, tmp_path / "joined.kvc")
    join_bundle(path, tmp_path / "joined.kvc", [apart])
    assert read_blobs(tmp_path / "joined.kvc") == read_blobs(path, [apart])


@pytest.mark.parametrize("operation", [split_bundle, join_bundle])
def test_a_damaged_blob_is_not_copied(path, tmp_path, operation):
    saved = save_data(path, SMALL, external=operation is join_bundle)
    damaged = Path(saved.data_path or path)
    raw = bytearray(damaged.read_bytes())
    raw[4100] ^= 1
    damaged.write_bytes(raw)
    before = files(tmp_path)
    with pytest.raises(DigestMismatch, match="page"):
        operation(path, tmp_path / "out.kvc")
    assert files(tmp_path) == before


@settings(max_examples=15, deadline=None)
@given(st.lists(st.binary(max_size=5000), max_size=6))
def test_there_and_back_is_the_same_for_any_contents(tmp_path_factory, raws):
    folder = tmp_path_factory.mktemp("any")
    path, small, back = (folder / name for name in ("m.kvc", "s.kvc", "b.kvc"))
    save_data(path, {str(i): raw for i, raw in enumerate(raws)})
    split_bundle(path, small)
    join_bundle(small, back)
    assert back.read_bytes() == path.read_bytes()
    before = small.read_bytes()
    split_bundle(back, small)
    assert small.read_bytes() == before
