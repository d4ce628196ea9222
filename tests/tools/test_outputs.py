"""Folders are written all or not at all."""

import io
import os
import zipfile
from pathlib import Path

import pytest

from kvc.schema.errors import CannotWrite
from kvc.tools.outputs import write_folder


def archive(**files: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as told:
        for name, text in files.items():
            told.writestr(name.replace("__", "/"), text)
    return made.getvalue()


def test_a_folder_has_the_files_of_the_archive(tmp_path: Path):
    write_folder(tmp_path / "made", archive(one="1", inner__two="2"))
    assert (tmp_path / "made" / "one").read_text() == "1"
    assert (tmp_path / "made" / "inner" / "two").read_text() == "2"
    assert [*tmp_path.iterdir()] == [tmp_path / "made"]


def test_what_is_there_stays(tmp_path: Path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_text("mine")
    with pytest.raises(CannotWrite, match="it exists"):
        write_folder(tmp_path / "made", archive(one="1"))
    assert [*tmp_path.rglob("*")] == [tmp_path / "made", tmp_path / "made" / "mine"]


def test_permissions_are_those_that_the_process_gives(tmp_path: Path):
    before = os.umask(0o077)
    try:
        write_folder(tmp_path / "made", archive(inner__two="2"))
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o700


def test_a_link_to_nothing_stays(tmp_path: Path):
    (tmp_path / "made").symlink_to("nowhere")
    with pytest.raises(CannotWrite, match="it exists"):
        write_folder(tmp_path / "made", archive(one="1"))
    assert [*tmp_path.iterdir()] == [tmp_path / "made"]


def test_nothing_is_left_where_it_fails(tmp_path: Path):
    with pytest.raises(CannotWrite, match="cannot write"):
        write_folder(tmp_path / "missing" / "made", archive(one="1"))
    torn = archive(one="1" * 1000)[:-40]
    with pytest.raises(zipfile.BadZipFile):
        write_folder(tmp_path / "made", torn)
    assert not [*tmp_path.iterdir()]
