"""A disk without room is found before the work; where nobody knows, all is tried."""

import os
from types import SimpleNamespace

import pytest
from named_bytes import save_data

from kvc.runtime import load
from kvc.schema.container import free_space
from kvc.schema.errors import CannotWrite, NoSpace

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
    assert free_space.free_nbytes(tmp_path) is None
    save_data(tmp_path / "a.kvc", DISTINCT)


def test_a_file_system_that_does_not_answer_refuses_nothing(monkeypatch, tmp_path):
    def fail(folder):
        raise OSError("not here")

    monkeypatch.setattr(os, "statvfs", fail)
    save_data(tmp_path / "a.kvc", DISTINCT)
