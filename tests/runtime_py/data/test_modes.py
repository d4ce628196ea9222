"""The three modes of `load`."""

import numpy as np
import pytest
from data_programs import shared_program, table_program, write_data_bundle
from resident_memory import LINUX, count_descriptors

from kvc.runtime import BadSetting, DataFileMismatch, DataFileMissing, load

MODES = ("map", "read", "huge")
EXTERNAL = (False, True)


@pytest.mark.parametrize("external", EXTERNAL)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_results(tmp_path, mode, external):
    built = table_program(100)
    path = write_data_bundle(tmp_path / "t.kvc", built, external)
    with load(path, mode) as program:
        assert program.row(np.array([7]))[0, 0] == 7
        assert program.total()[0, 0] == 4950
        assert program.residency().mode == mode


@pytest.mark.parametrize("mode", ["mmap", "", None, "MAP"])
def test_an_unknown_mode_is_refused_before_the_file_is_opened(tmp_path, mode):
    with pytest.raises(BadSetting, match="mode: expected map or read or huge, got"):
        load(tmp_path / "nothing.kvc", mode)


@pytest.mark.parametrize("folder", ["data", b"data"])
def test_a_folder_alone_is_no_list_of_folders(tmp_path, folder):
    with pytest.raises(BadSetting, match="data_folders: expected a sequence"):
        load(tmp_path / "nothing.kvc", data_folders=folder)
    with pytest.raises(BadSetting, match="data_folders: expected a sequence"):
        load(tmp_path / "nothing.kvc", data_folders=tmp_path)


def test_a_missing_data_file_is_an_error_at_load(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(2), external=True)
    (found,) = tmp_path.glob("*.kvd")
    other = tmp_path / "other"
    other.mkdir()
    found.rename(other / found.name)
    with pytest.raises(DataFileMissing) as caught:
        load(path)
    assert caught.value.name == found.name
    with load(path, data_folders=[other]) as program:
        assert program.total()[0, 0] == 1


def test_another_builds_data_file_is_an_error_at_load(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(2), external=True)
    (found,) = tmp_path.glob("*.kvd")
    other = tmp_path / "other"
    other.mkdir()
    write_data_bundle(other / "t.kvc", table_program(3), external=True)
    (wrong,) = other.glob("*.kvd")
    wrong.rename(found)
    with pytest.raises(DataFileMismatch):
        load(path)


@LINUX
def test_a_load_that_fails_leaves_no_file_open(tmp_path):
    path = write_data_bundle(tmp_path / "t.kvc", table_program(2), external=True)
    (found,) = tmp_path.glob("*.kvd")
    found.unlink()
    before = count_descriptors()
    with pytest.raises(DataFileMissing) as caught:
        load(path)
    assert caught.value.path == str(path)
    assert count_descriptors() == before


@pytest.mark.parametrize("length", [16, 100_000])
@pytest.mark.parametrize("external", EXTERNAL)
@pytest.mark.parametrize("mode", MODES)
def test_a_state_shares_no_memory_with_the_constant_it_starts_as(
    tmp_path, mode, external, length
):
    path = write_data_bundle(tmp_path / "s.kvc", shared_program(length), external)
    start = np.arange(length, dtype=np.float32)
    nothing = np.zeros(length, np.float32)
    with load(path, mode) as program, program.session() as session:
        assert len(program.residency().blobs) == 1
        constant = program.data["constant"].array()
        assert np.array_equal(program.plus(nothing), start)
        assert not np.shares_memory(session.state["sum"], constant)
        session.add(np.full(length, 10, np.float32))
        assert np.array_equal(session.state["sum"], start + 10)
        assert np.array_equal(program.plus(nothing), start)
        assert np.array_equal(constant, start)
        session.reset()
        assert np.array_equal(session.state["sum"], start)
        with program.session() as other:
            assert np.array_equal(other.state["sum"], start)
