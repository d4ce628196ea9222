import os
from dataclasses import replace
from pathlib import Path

import pytest
from named_bytes import SMALL, read_blobs, save_data
from sealing import parts, seal

from kvc.schema.codec import decode, encode
from kvc.schema.container import BundleFile, StoredBlobs, verify_bundle
from kvc.schema.errors import (
    BadMagic,
    BadProgram,
    DataFileMismatch,
    DataFileMissing,
    FileProblem,
    FormatError,
)
from kvc.schema.model import DataFile

OTHER = {"a": b"other weights"}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "store").mkdir()
    return tmp_path / "home" / "model.kvc"


@pytest.fixture
def data(path):
    """The path of the data file, which lies beside the bundle."""
    return Path(save_data(path, SMALL, external=True).data_path)


@pytest.fixture
def store(path):
    return path.parent.parent / "store"


def other_data(store):
    """Make a whole data file of other content."""
    return Path(save_data(store / "other.kvc", OTHER, external=True).data_path)


def test_it_is_found_beside_the_bundle_wherever_that_is(path, data, store, monkeypatch):
    link = store / "link.kvc"
    link.symlink_to(path)
    assert len(read_blobs(link)) == 4
    monkeypatch.chdir(path.parent)
    assert len(read_blobs("model.kvc")) == 4


def test_it_is_found_in_another_folder(path, data, store):
    data.rename(store / data.name)
    assert len(read_blobs(path, [store])) == 4
    verify_bundle(path, [store])


def test_a_missing_one_is_named_with_digest_and_folders(path, data, store):
    data.unlink()
    with pytest.raises(DataFileMissing) as caught:
        read_blobs(path, [store])
    for part in (str(path), data.name, str(path.parent), str(store), "--data-folder"):
        assert part in str(caught.value)
    assert caught.value.name == data.name
    assert caught.value.expected.startswith(data.stem[-12:])


def test_a_wrong_one_is_named_with_both_digests(path, data, store):
    data.write_bytes(other_data(store).read_bytes())
    with pytest.raises(DataFileMismatch) as caught:
        read_blobs(path)
    error = caught.value
    assert error.expected.startswith(data.stem[-12:])
    assert len(error.found) == 64
    assert error.found != error.expected
    for part in (str(path), data.name, error.expected, error.found, str(path.parent)):
        assert part in str(error)


def test_a_wrong_one_does_not_hide_the_right_one(path, data, store):
    data.rename(store / data.name)
    data.write_bytes(other_data(store).read_bytes())
    assert len(read_blobs(path, [store])) == 4


def test_one_that_is_passed_over_is_closed(path, data, store):
    data.rename(store / data.name)
    data.write_bytes(other_data(store).read_bytes())
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    read_blobs(path, [store])
    assert len(list(descriptors.iterdir())) == before


def test_a_folder_that_may_not_be_listed_can_hold_data(path, data, store, monkeypatch):
    data.rename(store / data.name)
    original = os.open

    def refuse(name, flags, *args, **kwargs):
        if name == str(store) and not flags & os.O_PATH:
            raise PermissionError(13, "Permission denied")
        return original(name, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    assert len(read_blobs(path, [store])) == 4


def test_a_damaged_one_is_an_error_of_its_own(path, data):
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(FormatError) as caught:
        read_blobs(path)
    assert caught.value.path == str(data)


def test_a_bundle_in_its_place_is_told_apart(path, data):
    data.write_bytes(path.read_bytes())
    with pytest.raises(BadMagic, match="a kvc bundle"):
        read_blobs(path)


def test_a_symbolic_link_is_refused_and_the_message_says_so(path, data, store):
    data.rename(store / data.name)
    data.symlink_to(store / data.name)
    with pytest.raises(FileProblem, match=r"symbolic link.* give the folder") as caught:
        read_blobs(path)
    assert caught.value.path == str(data)


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_no_plain_file_is_refused(path, data, kind):
    data.unlink()
    if kind == "fifo":
        os.mkfifo(data)
    elif kind == "folder":
        data.mkdir()
    else:
        try:
            os.mknod(data, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pytest.skip("only root makes devices")
    with pytest.raises(FileProblem, match=r"not a kvc file|No such device"):
        read_blobs(path)


def test_a_folder_that_is_not_there_is_named(path, data, store):
    data.unlink()
    with pytest.raises(FileProblem, match=r"cannot read .*nowhere"):
        read_blobs(path, [store / "nowhere"])


@pytest.mark.parametrize(
    "name",
    [
        "../store/m.kvd",
        "a/../m.kvd",
        "/etc/passwd",
        "..",
        ".",
        ".m.kvd",
        "",
        "m\\n.kvd",
        "m\0.kvd",
        "x" * 129,
        "ünicode.kvd",
        "m.kvd\n",
    ],
)
def test_a_name_that_is_no_plain_name_is_refused(path, data, name):
    blobs, raw = parts(path)
    program = decode(raw, "x")
    files = (program.files[0], replace(program.files[1], name=name))
    try:
        changed = encode(replace(program, files=files))
    except ValueError:
        return
    path.write_bytes(seal(blobs, changed))
    with pytest.raises(FormatError):
        read_blobs(path)


def test_a_data_file_for_nothing_is_refused(path, data):
    blobs, raw = parts(path)
    program = decode(raw, "x")
    files = (*program.files, DataFile("more.kvd", bytes(32)))
    path.write_bytes(seal(blobs, encode(replace(program, files=files))))
    with pytest.raises(BadProgram, match="file 2 holds no blob"):
        BundleFile(path)


def test_all_folders_are_told_of_when_all_are_wrong(path, data, store):
    wrong = other_data(store).read_bytes()
    data.write_bytes(wrong)
    (store / data.name).write_bytes(wrong)
    with pytest.raises(DataFileMismatch) as caught:
        StoredBlobs.open(BundleFile(path), [store])
    assert str(store) in str(caught.value)
