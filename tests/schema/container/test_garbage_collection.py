import errno
import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from asked_locks import asked_to_share
from named_bytes import SMALL, names, read_blobs, save_data

from kvc.schema.container import (
    collect_garbage,
    garbage_collection,
    unreferenced,
    verify_bundle,
)
from kvc.schema.errors import CannotCollect, FileProblem

SUPPORT = Path(__file__).parents[2] / "support"
NEW = SMALL | {"new": b"new"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.kvc"


@pytest.fixture
def old(path):
    """The path of a data file that is not needed any more, beside a newer pair."""
    data = Path(save_data(path, SMALL, external=True).data_path)
    save_data(path, NEW, external=True)
    return data


def removed(folder, **options):
    return [one.name for one in collect_garbage(folder, **options).removed]


def test_only_what_no_bundle_needs_goes(path, tmp_path, old):
    nbytes = old.stat().st_size
    assert [(one.name, one.nbytes) for one in unreferenced(tmp_path)] == [
        (old.name, nbytes)
    ]
    assert removed(tmp_path) == [old.name]
    assert not old.exists()
    verify_bundle(path)
    assert removed(tmp_path) == []


def test_a_dry_run_removes_nothing(tmp_path, old):
    before = names(tmp_path)
    assert removed(tmp_path, dry_run=True) == [old.name]
    assert names(tmp_path) == before


def test_a_reused_data_file_is_needed_by_both(path, tmp_path):
    base = save_data(tmp_path / "base.kvc", SMALL, external=True)
    save_data(path, NEW, external=True, reuse=[base.data_path])
    (tmp_path / "base.kvc").unlink()
    assert removed(tmp_path) == []
    path.unlink()
    assert len(removed(tmp_path)) == 2


@pytest.mark.parametrize("name", ["broken.kvc", "BROKEN.KVC", "bundle-without-suffix"])
def test_nothing_goes_while_a_bundle_cannot_be_read(path, tmp_path, old, name):
    (tmp_path / name).write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CannotCollect, match=name) as caught:
        collect_garbage(tmp_path)
    assert caught.value.folder == str(tmp_path)
    assert old.exists()


def test_a_bundle_by_another_name_counts(path, tmp_path, old):
    path.rename(tmp_path / "model.bin")
    assert removed(tmp_path) == [old.name]


def test_a_fifo_called_like_a_bundle_stops_it(tmp_path, old):
    os.mkfifo(tmp_path / "fifo.kvc")
    with pytest.raises(CannotCollect, match=r"fifo\.kvc"):
        collect_garbage(tmp_path)


def test_folders_and_links_are_not_bundles(tmp_path, old):
    (tmp_path / "folder.kvc").mkdir()
    (tmp_path / "dangling.kvc").symlink_to("nowhere")
    assert removed(tmp_path) == [old.name]


def test_what_is_not_a_data_file_of_ours_stays(tmp_path, path):
    save_data(path, SMALL, external=True)
    data = next(tmp_path.glob("*.kvd")).read_bytes()
    (tmp_path / "mine-0123456789ab.kvd").write_bytes(b"somebody else's")
    (tmp_path / "renamed.kvd").write_bytes(data)
    (tmp_path / "link-0123456789ab.kvd").symlink_to("renamed.kvd")
    (tmp_path / "folder-0123456789ab.kvd").mkdir()
    os.mkfifo(tmp_path / "fifo-0123456789ab.kvd")
    assert removed(tmp_path) == []


def test_other_folders_are_not_looked_at(tmp_path, path):
    (tmp_path / "sub").mkdir()
    inner = save_data(tmp_path / "sub" / "m.kvc", SMALL, external=True)
    (tmp_path / "sub" / "m.kvc").unlink()
    assert removed(tmp_path) == []
    assert Path(inner.data_path).exists()


def test_temporary_files_that_nobody_holds_go_too(tmp_path, old):
    left = tmp_path / ".kvc-1-00ff.tmp"
    left.write_bytes(b"12345")
    held = tmp_path / ".kvc-2-00ff.tmp"
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = collect_garbage(tmp_path)
    assert [one.name for one in done.removed] == [left.name, old.name]
    assert [one.name for one in done.held] == [held.name]


@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_file_that_a_writer_holds_stays(tmp_path, old, how):
    with old.open("rb") as file:
        fcntl.flock(file, how)
        done = collect_garbage(tmp_path)
        assert ([one.name for one in done.held], done.removed) == ([old.name], ())
    assert removed(tmp_path) == [old.name]


def test_a_bundle_that_appears_before_the_lock_was_had_saves_its_file(
    path, tmp_path, old, monkeypatch
):
    """The second reading of the bundles decides, not the first."""
    original = garbage_collection._open_to_lock

    def opened(name, folder):
        save_data(tmp_path / "late.kvc", NEW, external=True, reuse=[old])
        return original(name, folder)

    monkeypatch.setattr(garbage_collection, "_open_to_lock", opened)
    assert removed(tmp_path) == []
    verify_bundle(tmp_path / "late.kvc")


def test_more_files_than_may_be_open_at_once(tmp_path, old, monkeypatch):
    monkeypatch.setattr(garbage_collection, "_AT_ONCE", 2)
    raw = old.read_bytes()
    for i in range(5):
        (tmp_path / f"x-00000000000{i}.kvd").write_bytes(raw)
    assert len(removed(tmp_path)) == 6


def test_what_went_before_a_bundle_broke_is_told(tmp_path, path, old, monkeypatch):
    monkeypatch.setattr(garbage_collection, "_AT_ONCE", 1)
    (tmp_path / "x-000000000000.kvd").write_bytes(old.read_bytes())
    original = os.unlink

    def unlink(name, **kwargs):
        original(name, **kwargs)
        path.write_bytes(b"broken")

    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(CannotCollect, match=f"nothing more .* after {old.name}, since"):
        collect_garbage(tmp_path)
    assert (tmp_path / "x-000000000000.kvd").exists()


def test_another_file_that_took_the_name_of_a_locked_one_stays(
    tmp_path, old, monkeypatch
):
    """Only the file that was locked is known to be free."""
    original = garbage_collection.needed_names

    def replaced(home, folder, settled=True):
        if collecting:
            raw = old.read_bytes()
            old.unlink()
            old.write_bytes(raw)
        collecting.append(True)
        return original(home, folder, settled)

    collecting = []
    monkeypatch.setattr(garbage_collection, "needed_names", replaced)
    assert removed(tmp_path) == []
    assert old.exists()


def test_files_are_opened_for_writing_since_nfs_locks_only_then(
    tmp_path, old, monkeypatch
):
    original, modes = fcntl.flock, []

    def watched(fd, how):
        modes.append(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE)
        original(fd, how)

    monkeypatch.setattr(fcntl, "flock", watched)
    assert removed(tmp_path) == [old.name]
    assert modes == [os.O_RDWR]


def test_a_file_that_may_not_be_written_is_locked_all_the_same(
    tmp_path, old, monkeypatch
):
    original = os.open

    def refuse(name, flags, *args, **kwargs):
        if name == old.name and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(name, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    assert removed(tmp_path) == [old.name]


def test_a_file_that_cannot_be_locked_is_not_said_to_be_held(
    tmp_path, old, monkeypatch
):
    def refuse(fd, how):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    done = collect_garbage(tmp_path)
    assert (done.removed, done.held) == ((), ())
    assert [(one.name, one.reason) for one in done.failed] == [
        (old.name, "it cannot be locked: Bad file descriptor")
    ]


def test_a_file_that_goes_before_it_is_locked_is_neither_held_nor_removed(
    tmp_path, old, monkeypatch
):
    original = garbage_collection._open_to_lock

    def opened(name, folder):
        old.unlink()
        return original(name, folder)

    monkeypatch.setattr(garbage_collection, "_open_to_lock", opened)
    assert collect_garbage(tmp_path) == garbage_collection.Collected((), (), ())


def test_a_file_that_cannot_be_removed_does_not_hide_those_that_were(
    tmp_path, old, monkeypatch
):
    (tmp_path / "x-000000000000.kvd").write_bytes(old.read_bytes())
    original = os.unlink

    def unlink(name, **kwargs):
        if name == old.name:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        original(name, **kwargs)

    monkeypatch.setattr(os, "unlink", unlink)
    done = collect_garbage(tmp_path)
    assert [one.name for one in done.removed] == ["x-000000000000.kvd"]
    assert [one.reason for one in done.failed] == ["Operation not permitted"]


def test_one_descriptor_a_file_is_enough(tmp_path, old, monkeypatch):
    """All files of a batch are locked through one open folder."""
    for i in range(20):
        (tmp_path / f"x-0000000000{i:02}.kvd").write_bytes(old.read_bytes())
    descriptors, open_files = Path("/proc/self/fd"), []
    before = len(list(descriptors.iterdir()))
    original = garbage_collection.needed_names

    def counted(home, folder, settled=True):
        open_files.append(len(list(descriptors.iterdir())) - before)
        return original(home, folder, settled)

    monkeypatch.setattr(garbage_collection, "needed_names", counted)
    assert len(removed(tmp_path)) == 21
    assert open_files == [1, 22]


def test_a_folder_that_is_none_is_refused(tmp_path, path):
    path.write_bytes(b"")
    for folder, text in ((tmp_path / "nowhere", "No such"), (path, "not a folder")):
        with pytest.raises(FileProblem, match=text):
            collect_garbage(folder)


def test_a_writer_that_waits_for_the_collector_writes_anew(path, monkeypatch):
    """It finds the data file, waits for its lock, and then the file is gone."""
    data = Path(save_data(path, SMALL, external=True).data_path)
    path.unlink()
    with data.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        asked = asked_to_share(monkeypatch)
        writer = threading.Thread(
            target=save_data, args=(path, SMALL), kwargs={"external": True}
        )
        writer.start()
        assert asked.wait(60)
        assert writer.is_alive()
        data.unlink()
    writer.join(60)
    assert not writer.is_alive()
    assert read_blobs(path)[0] == SMALL["a"]


def test_collectors_and_writers_side_by_side_never_break_a_bundle(path, tmp_path):
    writer = f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
from named_bytes import SMALL, save_data
for i in range(40):
    save_data({str(path)!r}, SMALL | {{"v": bytes([i % 2])}}, external=True)
"""
    collector = f"""
from kvc.schema.container import (collect_garbage)
for i in range(150):
    collect_garbage({str(tmp_path)!r})
"""
    save_data(path, SMALL, external=True)
    children = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
        for code in (writer, collector)
    ]
    for child in children:
        assert child.communicate()[1] == b""
    verify_bundle(path)
    collect_garbage(tmp_path)
    assert len(names(tmp_path)) == 2
