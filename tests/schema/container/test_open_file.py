"""Strange paths through all doors: errors with a type, or the file that is meant."""

import re

import pytest
from named_bytes import SMALL, save_data

from kvc.schema.container import (
    collect_garbage,
    join_bundle,
    split_bundle,
    verify_bundle,
    verify_file,
)
from kvc.schema.container.open_file import OpenFile, resolved, several
from kvc.schema.errors import BadSetting, CannotWrite, FileChanged, FileProblem


@pytest.fixture
def path(tmp_path):
    save_data(tmp_path / "m.kvc", SMALL, external=True)
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path / "m.kvc"


@pytest.mark.parametrize("name", ["loop", "loop/x.kvc", "nul\0.kvc"])
def test_an_output_that_is_no_path(path, tmp_path, name):
    output = f"{tmp_path}/{name}"
    for write in (
        lambda: save_data(output, SMALL),
        lambda: split_bundle(path, output),
        lambda: join_bundle(path, output),
    ):
        with pytest.raises(CannotWrite):
            write()


@pytest.mark.parametrize("name", ["loop", "nul\0.kvd"])
def test_an_input_that_is_no_path(path, tmp_path, name):
    wrong = f"{tmp_path}/{name}"
    for read in (
        lambda: save_data(tmp_path / "b.kvc", SMALL, reuse=[wrong]),
        lambda: verify_file(wrong),
        lambda: split_bundle(wrong),
        lambda: collect_garbage(wrong),
    ):
        with pytest.raises(FileProblem):
            read()


@pytest.mark.parametrize("thing", [None, 5, 1.5, ["m.kvc"]])
def test_what_is_no_path_at_all(path, thing):
    match = re.escape(f"expected a str or an os.PathLike, got {thing!r}")
    for use in (
        lambda: save_data(thing, SMALL),
        lambda: split_bundle(thing),
        lambda: join_bundle(path, thing),
        lambda: verify_file(thing),
        lambda: verify_bundle(path, [thing]),
        lambda: collect_garbage(thing),
        lambda: resolved(thing),
    ):
        with pytest.raises(BadSetting, match=match):
            use()
    with pytest.raises(BadSetting, match=re.escape("os.PathLike, got 5")):
        several(5)


def test_what_a_file_holds_is_no_path(path, tmp_path):
    content = path.read_bytes()
    match = rf"os.fsdecode.* write it to a file first\), got {len(content)} bytes"
    for use in (verify_file, collect_garbage, resolved, several):
        with pytest.raises(BadSetting, match=match):
            use(content)


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_one_folder_alone_and_folders(path, tmp_path, kind):
    (tmp_path / "sub").mkdir()
    moved = path.rename(tmp_path / "sub" / path.name)
    verify_bundle(moved, kind(tmp_path))
    verify_bundle(moved, [kind(tmp_path)])
    join_bundle(moved, tmp_path / "joined.kvc", kind(tmp_path))
    split_bundle(moved, tmp_path / "split.kvc", kind(tmp_path))


def test_what_links_lead_to(path, tmp_path):
    (tmp_path / "link").symlink_to(path.name)
    assert resolved(tmp_path / "link") == path
    assert resolved(tmp_path / "none") == tmp_path / "none"
    assert several(["a", tmp_path]) == ("a", str(tmp_path))


def test_a_file_opened_again_outlives_the_first_and_knows_what_it_was(path):
    with OpenFile(path) as file, file.again() as other:
        file.close()
        with pytest.raises(FileProblem):
            file.again()
        assert other.pread(0, other.size) == path.read_bytes()
        other.check_unchanged()
        path.write_bytes(b"something else")
        with pytest.raises(FileChanged, match=r"m\.kvc"):
            other.check_unchanged()
