import pytest
from named_bytes import SMALL, names, save_data

from kvc.schema.container import verify_bundle
from kvc.tools import progress


@pytest.fixture
def path(tmp_path):
    save_data(tmp_path / "m.kvc", SMALL)
    return tmp_path / "m.kvc"


def test_in_place_the_bundle_becomes_small(kvc, path, tmp_path):
    result = kvc("split", path)
    assert result.exit_code == 0
    (data,) = (name for name in names(tmp_path) if name.endswith(".kvd"))
    assert result.stdout == f"{path}: 1.24 kB; its data: {data}, 8.81 kB\n"
    verify_bundle(path)
    assert kvc("split", path).stdout == f"{path}: 1.24 kB, no data to move\n"


def test_an_output_leaves_the_bundle_alone(kvc, path, tmp_path):
    before = path.read_bytes()
    assert kvc("split", path, "-o", tmp_path / "small.kvc").exit_code == 0
    assert path.read_bytes() == before
    assert any(name.startswith("small-") for name in names(tmp_path))
    again = kvc("split", path, "-o", tmp_path / "small.kvc")
    assert "which was there already" in again.stdout


def test_split_and_join_give_the_bundle_back(kvc, path, tmp_path):
    before = path.read_bytes()
    kvc("split", path)
    result = kvc("join", path, "-o", tmp_path / "whole.kvc")
    assert result.stdout == f"{tmp_path}/whole.kvc: 9.54 kB, all in one file\n"
    assert (tmp_path / "whole.kvc").read_bytes() == before


def test_join_looks_in_other_folders(kvc, path, tmp_path):
    kvc("split", path)
    (data,) = tmp_path.glob("*.kvd")
    (tmp_path / "store").mkdir()
    data.rename(tmp_path / "store" / data.name)
    target = tmp_path / "whole.kvc"
    assert kvc("join", path, "-o", target).exit_code == 1
    folder = ("--data-folder", tmp_path / "store")
    assert kvc("join", path, "-o", target, *folder).exit_code == 0
    verify_bundle(target)


def test_where_the_data_of_a_link_went_is_said(kvc, path, tmp_path):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link.kvc"
    link.symlink_to(path)
    text = kvc("split", link).stdout
    (data,) = tmp_path.glob("*.kvd")
    assert f"its data: {data}, " in text


@pytest.mark.parametrize("command", ["split", "join"])
def test_a_data_file_is_no_output(kvc, path, tmp_path, command):
    kvc("split", path)
    (data,) = tmp_path.glob("*.kvd")
    before = data.read_bytes()
    result = kvc(command, path, "-o", data)
    assert result.exit_code == 1
    assert "a data file is there" in result.stderr
    assert data.read_bytes() == before


@pytest.mark.parametrize("command", ["split", "join"])
def test_progress_can_be_turned_off(kvc, path, tmp_path, command, monkeypatch):
    given = []
    original = progress.Stages.__init__

    def watched(self, *, quiet):
        given.append(quiet)
        original(self, quiet=quiet)

    monkeypatch.setattr(progress.Stages, "__init__", watched)
    for option in ((), ("-q",)):
        result = kvc(command, path, *option, "-o", tmp_path / "out.kvc")
        assert result.exit_code == 0
    assert given == [False, True]


def test_join_needs_an_output(kvc, path):
    assert kvc("join", path).exit_code == 2


@pytest.mark.parametrize("command", ["split", "join"])
def test_an_output_that_cannot_be_written_is_refused(kvc, path, tmp_path, command):
    result = kvc(command, path, "-o", tmp_path / "nowhere" / "x.kvc")
    assert result.exit_code == 1
    assert "does not exist" in result.stderr


def test_a_data_file_is_no_bundle(kvc, path, tmp_path):
    kvc("split", path)
    (data,) = tmp_path.glob("*.kvd")
    result = kvc("split", data)
    assert result.exit_code == 1
    assert "m-" in result.stderr
    assert "give the .kvc file that uses it" in result.stderr
    assert "not a kvc file" not in result.stderr
