import fcntl
import os
import stat
import struct
import tracemalloc
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest
from named_bytes import SMALL, data_program, names, read_blobs, save_data
from sealing import reseal_header

from kvc.runtime import load
from kvc.schema.container import (
    BundleFile,
    Content,
    join_bundle,
    save,
    save_bundle,
    split_bundle,
    verify_bundle,
    verify_data_file,
)
from kvc.schema.errors import CannotWrite, NoSpace

NEW = SMALL | {"new": b"new bytes"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


def contents_of(path):
    """What a bundle holds, by name."""
    blobs = read_blobs(path)
    with BundleFile(path) as bundle:
        return {named.name: blobs[named.blob] for named in bundle.program.names}


def test_equal_bytes_are_stored_once(path):
    saved = save_data(path, SMALL)
    assert [named.blob for named in saved.program.names] == [0, 1, 0, 2, 3]
    assert [blob.offset for blob in saved.program.blobs] == [128, 384, 4096, 8448]
    assert saved.nbytes == path.stat().st_size
    assert contents_of(path) == SMALL


def test_names_with_an_equal_key_are_read_once(path):
    raw, reads = b"shared", []

    def content(name):
        def chunks():
            reads.append(name)
            yield memoryview(raw)

        return Content(6, chunks, "one")

    save_bundle(path, data_program({"a": raw, "b": raw}), content)
    assert reads == [0]
    assert contents_of(path) == {"a": raw, "b": raw}


def test_external_data_leaves_header_and_program_in_the_bundle(path, tmp_path):
    saved = save_data(path, SMALL, external=True)
    digest = saved.program.files[1].digest.hex()
    assert names(tmp_path) == [f"model-{digest[:12]}.kvd", "model.kvc"]
    assert saved.data_path == str(tmp_path / f"model-{digest[:12]}.kvd")
    assert saved.data_nbytes == Path(saved.data_path).stat().st_size
    assert saved.data_is_new
    assert {blob.file for blob in saved.program.blobs} == {1}
    with BundleFile(path) as bundle:
        assert bundle.header.tail_offset == 128
        assert bundle.program == saved.program
    assert contents_of(path) == SMALL
    verify_bundle(path)
    verify_data_file(saved.data_path)


def test_saving_again_gives_equal_files_and_uses_the_data_file(path, tmp_path):
    first = save_data(path, SMALL, external=True)
    raw, inode = path.read_bytes(), Path(first.data_path).stat().st_ino
    again = save_data(path, SMALL, external=True)
    assert not again.data_is_new
    assert path.read_bytes() == raw
    assert Path(first.data_path).stat().st_ino == inode
    assert len(names(tmp_path)) == 2


def test_a_data_file_is_never_written_over(path, tmp_path):
    first = save_data(path, SMALL, external=True)
    second = save_data(path, NEW, external=True)
    assert names(tmp_path) == sorted(
        [path.name, Path(first.data_path).name, Path(second.data_path).name]
    )
    verify_data_file(first.data_path)


@pytest.mark.parametrize("damage", ["index", "blob", "cut", "link", "empty"])
def test_a_damaged_data_file_of_the_name_is_replaced(path, tmp_path, damage):
    data = Path(save_data(path, SMALL, external=True).data_path)
    raw = bytearray(data.read_bytes())
    if damage == "link":
        data.rename(tmp_path / "elsewhere")
        data.symlink_to(tmp_path / "elsewhere")
    elif damage in ("index", "blob"):
        raw[-1 if damage == "index" else 130] ^= 1
        data.write_bytes(raw)
    else:
        data.write_bytes(raw[: 500 if damage == "cut" else 0])
    saved = save_data(path, SMALL, external=True)
    assert saved.data_is_new
    assert not data.is_symlink()
    verify_bundle(path)


def test_another_whole_data_file_of_the_name_is_not_replaced(path, tmp_path):
    data = Path(save_data(path, SMALL, external=True).data_path)
    other = Path(save_data(tmp_path / "other.kvc", NEW, external=True).data_path)
    data.write_bytes(other.read_bytes())
    with pytest.raises(CannotWrite, match="is another data file"):
        save_data(path, SMALL, external=True)
    assert data.read_bytes() == other.read_bytes()


def test_what_is_no_data_file_of_this_version_is_not_replaced(path, tmp_path):
    data = Path(save_data(path, SMALL, external=True).data_path)
    raw = data.read_bytes()
    save_data(tmp_path / "whole.kvc", NEW)
    newer = reseal_header(raw[:8] + struct.pack("<I", 1) + raw[12:])
    for other in (
        newer,
        (tmp_path / "whole.kvc").read_bytes(),
        b"my notes",
        bytes(200) + b"after zeros",
    ):
        data.write_bytes(other)
        with pytest.raises(CannotWrite, match="move it away"):
            save_data(path, SMALL, external=True)
        assert data.read_bytes() == other


@pytest.mark.parametrize("external", [False, True])
def test_a_bundle_never_takes_the_place_of_a_data_file(path, external):
    data = Path(save_data(path, SMALL, external=True).data_path)
    for reuse in ((), (data,)):
        with pytest.raises(CannotWrite, match="a data file is there"):
            save_data(data, NEW, external=external, reuse=reuse)
    with pytest.raises(CannotWrite, match="a data file is there"):
        split_bundle(path, data)
    with pytest.raises(CannotWrite, match="a data file is there"):
        join_bundle(path, data)
    verify_bundle(path)


def test_a_bundle_that_is_called_like_its_own_data_file_is_refused(tmp_path):
    """The name of the data file is cut after 96 characters of the bundle's."""
    long = tmp_path / ("x" * 96 + ".kvc")
    name = Path(save_data(long, SMALL, external=True).data_path).name
    for entry in tmp_path.iterdir():
        entry.unlink()
    with pytest.raises(CannotWrite, match="this very name"):
        save_data(tmp_path / name, SMALL, external=True)
    assert names(tmp_path) == []


def test_contents_that_look_like_the_leaves_of_another_are_told_apart(path):
    """With the prefix, a small content has the digest of the large one."""
    large = bytes(1 << 20) + b"1" * (1 << 20)
    leaves = b"".join(sha256(large[i : i + (1 << 20)]).digest() for i in (0, 1 << 20))
    contents = {"large": large, "leaves": leaves, "same": b"kvc-tree" + leaves}
    saved = save_data(path, contents, external=True)
    assert saved.program.blobs[0].digest != saved.program.blobs[1].digest
    assert saved.program.blobs[0].digest == saved.program.blobs[2].digest
    assert contents_of(path) == contents
    reusing = path.with_name("other.kvc")
    assert save_data(reusing, contents, reuse=[saved.data_path]).data_path is None
    assert contents_of(reusing) == contents
    verify_bundle(reusing)


def test_a_folder_of_the_name_is_refused(path, tmp_path):
    data = Path(save_data(path, SMALL, external=True).data_path)
    data.unlink()
    data.mkdir()
    with pytest.raises(CannotWrite, match="folder"):
        save_data(path, SMALL, external=True)
    assert names(tmp_path) == sorted([data.name, path.name])


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("my model.v1.kvc", "my_model.v1"),
        (".hidden.kvc", "hidden"),
        ("ü", "_"),
        ("x" * 200, "x" * 96),
        ("...", "data"),
    ],
)
def test_the_name_of_the_data_file_is_plain_whatever_the_bundle_s(tmp_path, name, stem):
    saved = save_data(tmp_path / name, SMALL, external=True)
    digest = saved.program.files[1].digest.hex()[:12]
    assert saved.program.files[1].name == f"{stem}-{digest}.kvd"
    verify_bundle(tmp_path / name)


def test_a_bundle_reached_by_a_link_has_its_data_beside_itself(path, tmp_path):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link.kvc"
    link.symlink_to(path)
    saved = save_data(link, SMALL, external=True)
    assert Path(saved.data_path).parent == tmp_path
    assert names(tmp_path / "links") == ["link.kvc"]
    verify_bundle(link)


def test_a_program_without_data_has_no_data_file(path, tmp_path):
    assert save_data(path, {}, external=True).data_path is None
    assert names(tmp_path) == [path.name]


def test_the_pair_becomes_durable_and_named_in_the_right_order(
    path, tmp_path, monkeypatch
):
    """Data file, its name, the folder; then bundle, its name, the folder."""
    done = []

    def watch(call, describe):
        original = getattr(os, call)

        def watched(*args, **kwargs):
            done.append((call, describe(*args)))
            return original(*args, **kwargs)

        monkeypatch.setattr(os, call, watched)

    def kind(fd):
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            return "folder"
        return os.pread(fd, 4, 0)[1:4].decode()

    watch("fsync", kind)
    watch("link", lambda source, target: Path(target).suffix)
    watch("rename", lambda source, target: Path(target).suffix)
    save_data(path, SMALL, external=True)
    assert done == [
        ("fsync", "KVD"),
        ("link", ".kvd"),
        ("fsync", "folder"),
        ("fsync", "KVC"),
        ("rename", ".kvc"),
        ("fsync", "folder"),
    ]


@pytest.mark.parametrize("external", [False, True])
def test_the_data_file_is_held_until_the_bundle_has_its_name(
    path, tmp_path, monkeypatch, external
):
    """Its own one, one that is there already, and one that is reused."""
    base = Path(save_data(tmp_path / "base.kvc", SMALL, external=True).data_path)
    original, held = Path.rename, []

    def rename(self, target):
        for data in tmp_path.glob("*.kvd"):
            with data.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(data.name)
        return original(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    for options in ({"reuse": [base]}, {}) if external else ({"reuse": [base]},):
        saved = save_data(path, NEW, external=external, **options)
        expected = {file.name for file in saved.program.files[1:]}
        assert set(held) == expected
        held.clear()
    again = save_data(path, NEW, external=True)
    assert held == [file.name for file in again.program.files[1:]]


def test_saving_leaves_no_descriptor_and_no_lock(path, tmp_path):
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    base = save_data(tmp_path / "base.kvc", SMALL, external=True).data_path
    for _ in range(2):
        saved = save_data(path, NEW, external=True, reuse=[base])
    assert len(list(descriptors.iterdir())) == before
    for data in (base, saved.data_path):
        with Path(data).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_memory_is_bounded_by_a_chunk(path):
    """Two contents of 64 MB, in pieces of 1 MB; the second is cut back."""
    piece = memoryview(bytes(range(256)) * 4000)
    program = data_program({"a": b"", "b": b""})
    kind = replace(program.names[0].type, dims=(64 * piece.nbytes,))
    named = tuple(replace(one, type=kind) for one in program.names)

    def content(name):
        return Content(64 * piece.nbytes, lambda: (piece for _ in range(64)), name)

    tracemalloc.start()
    saved = save_bundle(path, replace(program, names=named), content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert len(saved.program.blobs) == 1
    assert saved.nbytes < 65 * piece.nbytes


DISTINCT = {name: bytes([i]) * 40_000 for i, name in enumerate("abc")}
EQUAL = {name: bytes(40_000) for name in "abc"}


@pytest.fixture
def free(monkeypatch):
    """Have the file system say that so many bytes are free."""

    def free_(nbytes, blocks=1 << 30):
        found = SimpleNamespace(
            f_blocks=blocks, f_bavail=nbytes, f_bfree=nbytes, f_frsize=1
        )
        monkeypatch.setattr(os, "statvfs", lambda folder: found)

    return free_


@pytest.mark.parametrize("external", [False, True])
def test_without_room_nothing_is_written(free, tmp_path, external):
    free(100_000)
    with pytest.raises(NoSpace) as caught:
        save_data(tmp_path / "a.kvc", DISTINCT, external=external)
    assert (caught.value.needed, caught.value.free) == (120_000, 100_000)
    assert "120,000 bytes, and 100,000 are free" in str(caught.value)
    assert isinstance(caught.value, CannotWrite)
    assert list(tmp_path.iterdir()) == []


def test_what_is_stored_once_is_counted_once(free, tmp_path):
    free(100_000)
    save_data(tmp_path / "a.kvc", EQUAL)
    with load(tmp_path / "a.kvc") as program:
        assert len(program.data) == 3


def test_what_a_reused_file_may_have_is_not_counted(free, tmp_path):
    save_data(tmp_path / "a.kvc", DISTINCT, external=True)
    (data,) = tmp_path.glob("*.kvd")
    free(100_000)
    save_data(tmp_path / "b.kvc", DISTINCT, external=True, reuse=[data])


def test_an_old_bundle_stays_where_the_new_one_has_no_room(free, tmp_path):
    save_data(tmp_path / "a.kvc", EQUAL)
    before = (tmp_path / "a.kvc").read_bytes()
    free(100_000)
    with pytest.raises(NoSpace):
        save_data(tmp_path / "a.kvc", DISTINCT)
    assert (tmp_path / "a.kvc").read_bytes() == before


@pytest.mark.parametrize(("nbytes", "blocks"), [(0, 0), (-1, 10), (11, 10)])
def test_numbers_without_meaning_refuse_nothing(free, tmp_path, nbytes, blocks):
    free(nbytes, blocks)
    assert save.free_nbytes(tmp_path) is None
    save_data(tmp_path / "a.kvc", DISTINCT)


def test_a_file_system_that_does_not_answer_refuses_nothing(monkeypatch, tmp_path):
    def fail(folder):
        raise OSError("not here")

    monkeypatch.setattr(os, "statvfs", fail)
    save_data(tmp_path / "a.kvc", DISTINCT)
