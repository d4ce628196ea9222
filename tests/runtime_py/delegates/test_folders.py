"""Folders as bytes, and as folders again."""

from pathlib import Path

import pytest

from kvc.runtime.delegates.folders import pack_folder
from kvc.schema.errors import CannotWrite
from kvc.tools.outputs import write_folder

FILES = {"b/c.txt": b"there", "a.txt": b"here"}


def test_equal_files_give_equal_bytes_and_come_back(tmp_path: Path):
    packed = pack_folder(FILES)
    assert packed == pack_folder(dict(sorted(FILES.items())))
    write_folder(tmp_path / "made", packed)
    for name, content in FILES.items():
        assert (tmp_path / "made" / name).read_bytes() == content


def test_a_folder_is_written_whole_or_not(tmp_path: Path):
    path = tmp_path / "made"
    write_folder(path, pack_folder(FILES))
    assert (path / "a.txt").read_bytes() == b"here"
    with pytest.raises(CannotWrite, match="it exists"):
        write_folder(path, pack_folder({"a.txt": b"other"}))
    assert (path / "a.txt").read_bytes() == b"here"
    with pytest.raises(CannotWrite, match="No such file"):
        write_folder(tmp_path / "missing" / "made", pack_folder(FILES))
    assert [each.name for each in tmp_path.iterdir()] == ["made"]


def test_a_file_of_its_name_is_not_replaced(tmp_path: Path):
    path = tmp_path / "made"
    path.write_text("mine")
    with pytest.raises(CannotWrite, match="it exists"):
        write_folder(path, pack_folder(FILES))
    assert path.read_text() == "mine"
