import fcntl
import json
import os
from pathlib import Path

import pytest
from named_bytes import SMALL, names, save_data


@pytest.fixture
def old(tmp_path):
    """The path of a data file that is not needed any more, beside a newer pair."""
    saved = save_data(tmp_path / "m.kvc", SMALL, external=True)
    save_data(tmp_path / "m.kvc", {"a": b"new"}, external=True)
    return Path(saved.data_path)


def test_it_says_what_it_removed(kvc, tmp_path, old):
    result = kvc("gc", tmp_path)
    assert result.stdout.splitlines() == [
        f"removed {old.name} (8.81 kB)",
        f"{tmp_path}: removed 1 file, 8.81 kB",
    ]
    assert not old.exists()
    assert kvc("gc", tmp_path).stdout == f"{tmp_path}: removed 0 files, 0 B\n"


def test_a_dry_run_only_says_it(kvc, tmp_path, old):
    assert f"would remove {old.name}" in kvc("gc", tmp_path, "--dry-run").stdout
    assert old.exists()


def test_as_json(kvc, tmp_path, old):
    assert json.loads(kvc("gc", tmp_path, "--json").stdout) == {
        "version": 1,
        "folder": str(tmp_path),
        "dry_run": False,
        "nbytes": 8808,
        "removed": [{"name": old.name, "nbytes": 8808}],
        "held": [],
        "failed": [],
    }


def test_what_somebody_uses_stays(kvc, tmp_path, old):
    with old.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        text = kvc("gc", tmp_path).stdout
    assert f"left {old.name}: somebody is using it" in text
    assert old.exists()


def test_what_cannot_be_removed_is_told_and_is_a_failure(
    kvc, tmp_path, old, monkeypatch
):
    def refuse(name, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refuse)
    result = kvc("gc", tmp_path)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"left {old.name}: Operation not permitted",
        f"{tmp_path}: removed 0 files, 0 B",
    ]


def test_a_bundle_is_not_its_folder(kvc, tmp_path, old):
    result = kvc("gc", tmp_path / "m.kvc")
    assert result.exit_code == 2
    assert "it is not a folder; give the one that holds bundles" in result.stderr


def test_nothing_goes_while_a_bundle_cannot_be_read(kvc, tmp_path, old):
    (tmp_path / "broken.kvc").write_bytes(b"broken")
    before = names(tmp_path)
    result = kvc("gc", tmp_path)
    assert result.exit_code == 2
    assert "nothing is removed, since broken.kvc may need" in result.stderr
    assert names(tmp_path) == before


def test_a_folder_that_is_none_is_refused(kvc, tmp_path):
    result = kvc("gc", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr


def test_a_folder_without_a_name_is_not_the_current_one(kvc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old-0123456789ab.kvd").write_bytes(b"")
    assert kvc("gc", "").exit_code == 2
    assert len(list(tmp_path.iterdir())) == 1
