"""Which bundles count when garbage is collected, while the folder changes too."""

import errno
import os
import time
from pathlib import Path

import pytest
from named_bytes import SMALL, names, save_data

from kvc.schema.container import collect_garbage, needed, unreferenced
from kvc.schema.errors import CannotCollect, FileProblem

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


def removed(folder):
    return [one.name for one in collect_garbage(folder).removed]


def rename_behind_listings(monkeypatch, path, other, times):
    """Give a bundle its other name after each of the first listings."""
    original, count = needed.list_folder, [0]

    def listed(home, folder):
        found = original(home, folder)
        count[0] += 1
        if count[0] <= times:
            (path if path.exists() else other).rename(other if path.exists() else path)
        return found

    monkeypatch.setattr(needed, "list_folder", listed)


@pytest.mark.parametrize("times", [1, 2, 3, 4, 5])
def test_a_bundle_that_gets_another_name_meanwhile_counts(
    path, tmp_path, old, monkeypatch, times
):
    rename_behind_listings(monkeypatch, path, tmp_path / "z.kvc", times)
    assert removed(tmp_path) == [old.name]


def test_a_listing_during_which_the_folder_changed_is_not_the_last(
    path, tmp_path, old, monkeypatch
):
    """It missed the only bundle twice, which had another name each time."""
    original, count = needed.list_folder, [0]

    def listed(home, folder):
        count[0] += 1
        if count[0] > 4:
            return original(home, folder)
        os.utime(home, ns=(count[0], count[0]))
        return [name for name in original(home, folder) if name != path.name]

    monkeypatch.setattr(needed, "list_folder", listed)
    assert [one.name for one in unreferenced(tmp_path)] == [old.name]


def test_the_last_listing_is_of_a_folder_that_has_settled(tmp_path, old, monkeypatch):
    """Two changes within a tick of the clock leave the same time of change."""
    original, ages = needed.list_folder, []

    def listed(home, folder):
        ages.append(time.time_ns() - os.fstat(folder).st_mtime_ns)
        return original(home, folder)

    monkeypatch.setattr(needed, "list_folder", listed)
    os.utime(tmp_path)
    assert [one.name for one in unreferenced(tmp_path)] == [old.name]
    assert ages[-1] > 20_000_000


def test_a_folder_that_never_stands_still_is_not_collected(
    path, tmp_path, old, monkeypatch
):
    before = len(names(tmp_path))
    rename_behind_listings(monkeypatch, path, tmp_path / "z.kvc", 10**6)
    monkeypatch.setattr(needed, "_ROUNDS", 10)
    monkeypatch.setattr(needed, "_names_in", lambda home, folder, entry: None)
    with pytest.raises(CannotCollect, match="in it all the time; try again"):
        collect_garbage(tmp_path)
    assert len(names(tmp_path)) == before


def test_a_bundle_that_goes_while_it_looks_is_no_fault(
    path, tmp_path, old, monkeypatch
):
    gone = save_data(tmp_path / "gone.kvc", {"x": b"gone"})
    original = needed.BundleFile

    def opened(name):
        (tmp_path / "gone.kvc").unlink(missing_ok=True)
        return original(name)

    monkeypatch.setattr(needed, "BundleFile", opened)
    assert removed(tmp_path) == [old.name]
    assert gone.data_path is None


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE])
def test_nothing_goes_while_what_may_be_a_bundle_cannot_be_opened(
    path, tmp_path, old, monkeypatch, code
):
    path.rename(tmp_path / "model.bundle")
    original = os.open

    def refuse(name, *args, **kwargs):
        if name == "model.bundle":
            raise OSError(code, os.strerror(code))
        return original(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CannotCollect, match=r"model\.bundle") as caught:
        collect_garbage(tmp_path)
    assert caught.value.reason == os.strerror(code)
    assert old.exists()


def test_nothing_goes_where_a_link_leads_to_what_cannot_be_looked_at(
    tmp_path, old, monkeypatch
):
    original = os.stat

    def refuse(name, *args, **kwargs):
        if name == "model.kvc":
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(CannotCollect, match="Permission denied"):
        collect_garbage(tmp_path)


@pytest.mark.parametrize("name", ["model.kvc", "no suffix"])
def test_a_link_to_a_bundle_elsewhere_counts(path, tmp_path, name):
    data = Path(save_data(path, SMALL, external=True).data_path)
    (tmp_path / "store").mkdir()
    path.rename(tmp_path / "store" / "model.kvc")
    (tmp_path / name).symlink_to("store/model.kvc")
    assert removed(tmp_path) == []
    (tmp_path / name).unlink()
    assert removed(tmp_path) == [data.name]


def test_links_that_lead_nowhere_or_in_circles_are_no_bundles(tmp_path, old):
    (tmp_path / "dangling.kvc").symlink_to("nowhere")
    (tmp_path / "circle.kvc").symlink_to("circle.kvc")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.kvc").symlink_to("folder")
    assert removed(tmp_path) == [old.name]


@pytest.mark.parametrize("name", ["broken.kvc", "BROKEN.KVC"])
def test_what_is_only_called_like_a_bundle_stops_it(tmp_path, old, name):
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(CannotCollect, match=name):
        collect_garbage(tmp_path)
    assert old.exists()


def test_a_half_written_bundle_under_a_temporary_name_is_none(path, tmp_path, old):
    (tmp_path / ".kvc-1-00ff.tmp").write_bytes(path.read_bytes()[:-1])
    assert removed(tmp_path) == [".kvc-1-00ff.tmp", old.name]


def test_a_folder_that_cannot_be_listed_is_a_problem_with_a_type(
    tmp_path, old, monkeypatch
):
    def refuse(folder):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(FileProblem, match="Too many open files"):
        collect_garbage(tmp_path)
