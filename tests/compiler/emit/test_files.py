"""Files that go along in a bundle, from `compile_program` to `program.files`."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from kvc.compiler import Bundle, Method, compile_program
from kvc.runtime import load
from kvc.schema.container import (
    BundleFile,
    collect_garbage,
    join_bundle,
    split_bundle,
    verify_bundle,
)
from kvc.schema.errors import BadFile, Closed, DigestMismatch, UnknownName

LONG = bytes(range(256)) * 5000  # more than a block and more than a leaf of a digest
FILES = {"tokenizer.json": b'{"a": 1}', "empty.txt": b"", "long.bin": LONG}


def bundle_with(files, model=None) -> Bundle:
    torch.manual_seed(0)
    methods = [Method("forward", args=(torch.ones(2, 8),))]
    return compile_program(model or nn.Linear(8, 4), methods, files=files)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.kvc"


def files_of(path: Path) -> dict[str, bytes]:
    with load(path) as program:
        return dict(program.files)


def test_files_come_back_byte_by_byte(path: Path):
    bundle_with(FILES).save(path)
    assert files_of(path) == FILES


def test_files_are_read_from_disk_when_the_bundle_is_saved(path: Path, tmp_path: Path):
    source = tmp_path / "long.bin"
    source.write_bytes(LONG)
    (tmp_path / "empty.txt").touch()
    given = {"tokenizer.json": b'{"a": 1}', "long.bin": source}
    bundle_with(given | {"empty.txt": tmp_path / "empty.txt"}).save(path)
    assert files_of(path) == FILES
    bundle_with(FILES).save(tmp_path / "held.kvc")
    assert (tmp_path / "held.kvc").read_bytes() == path.read_bytes()


def test_the_order_in_which_files_are_given_does_not_matter(path: Path, tmp_path: Path):
    bundle_with(FILES).save(path)
    bundle_with(dict(reversed(FILES.items()))).save(tmp_path / "other.kvc")
    assert path.read_bytes() == (tmp_path / "other.kvc").read_bytes()


def test_other_files_make_another_program(path: Path, tmp_path: Path):
    bundle_with({"a": b"1"}).save(path)
    bundle_with({"a": b"2"}).save(tmp_path / "other.kvc")
    with BundleFile(path) as one, BundleFile(tmp_path / "other.kvc") as other:
        assert one.digest != other.digest


def test_a_method_runs_as_without_files(path: Path, tmp_path: Path):
    bundle_with(FILES).save(path)
    bundle_with({}).save(tmp_path / "bare.kvc")
    x = torch.randn(2, 8)
    with load(path) as program, load(tmp_path / "bare.kvc") as bare:
        assert torch.equal(program.forward(x), bare.forward(x))
        assert not bare.files


def test_a_file_of_the_same_bytes_as_a_weight_is_stored_once(path: Path):
    model = nn.Linear(8, 4)
    same = model.weight.detach().numpy().tobytes()
    report = bundle_with({"same.bin": same}, model).save(path)
    assert (report.names, report.blobs) == (3, 2)
    assert files_of(path) == {"same.bin": same}


def test_files_survive_split_garbage_collection_and_join(path: Path, tmp_path: Path):
    bundle_with(FILES).save(path)
    split = tmp_path / "apart" / "model.kvc"
    split.parent.mkdir()
    saved = split_bundle(path, split)
    assert Path(saved.data_path or "").stat().st_size > len(LONG)
    collect_garbage(split.parent)
    assert files_of(split) == FILES
    join_bundle(split, tmp_path / "joined.kvc")
    assert (tmp_path / "joined.kvc").read_bytes() == path.read_bytes()


def test_files_are_found_in_a_data_file_that_is_reused(path: Path, tmp_path: Path):
    first = bundle_with(FILES).save(path, data="external")
    assert first.data_path is not None
    other = tmp_path / "other.kvc"
    report = bundle_with(FILES).save(other, reuse=[first.data_path])
    assert report.data_path is None
    assert report.file_nbytes < len(LONG)
    assert files_of(other) == FILES


def test_one_flipped_bit_of_a_file_is_an_error_that_names_it(path: Path):
    bundle_with(FILES).save(path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(LONG) + len(LONG) - 1] ^= 1
    path.write_bytes(raw)
    with load(path) as program:
        assert program.files["tokenizer.json"] == b'{"a": 1}'
        with pytest.raises(DigestMismatch, match=r"files/long\.bin is damaged"):
            program.files["long.bin"]
    with pytest.raises(DigestMismatch, match=r"files/long\.bin"):
        verify_bundle(path)


def test_a_file_that_is_not_there_is_named_with_those_that_are(path: Path):
    bundle_with({"a.txt": b"1", "b.txt": b"2"}).save(path)
    with load(path) as program:
        with pytest.raises(UnknownName, match=r"bundled file.*c\.txt.*a\.txt, b"):
            program.files["c.txt"]
        assert "c.txt" not in program.files
        assert len(program.files) == 2
    with pytest.raises(Closed):
        program.files["a.txt"]


@pytest.mark.parametrize(
    "name", ["", "a/b", "../a", ".hidden", "a b", "a\n", "ä", "x" * 129, "a\\b", 7]
)
def test_a_name_that_is_not_plain_is_refused(name):
    with pytest.raises(BadFile, match="plain"):
        bundle_with({name: b""})


@pytest.mark.parametrize("content", ["text", None, bytearray(b"1"), 7])
def test_a_content_that_is_neither_bytes_nor_path_is_refused(content):
    with pytest.raises(BadFile, match=f"found {type(content).__name__}"):
        bundle_with({"a": content})


def test_a_path_that_leads_to_no_plain_file_is_refused(tmp_path: Path):
    with pytest.raises(BadFile, match=r"nowhere.*No such file"):
        bundle_with({"a": tmp_path / "nowhere"})
    with pytest.raises(BadFile, match="not a plain file"):
        bundle_with({"a": tmp_path})
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadFile, match="not a plain file"):
        bundle_with({"a": tmp_path / "pipe"})


@pytest.mark.parametrize("change", ["longer", "replaced", "gone"])
def test_a_file_that_changes_before_it_is_saved_is_noticed(path, tmp_path, change):
    source = tmp_path / "source"
    source.write_bytes(b"before")
    bundle = bundle_with({"a": source})
    if change == "longer":
        source.write_bytes(b"before and after")
    else:
        source.unlink()
    if change == "replaced":
        (tmp_path / "other").write_bytes(b"keeps the inode")
        source.write_bytes(b"before")
        os.utime(source, ns=(0, 0))
    with pytest.raises(BadFile, match=r"changed since|No such file"):
        bundle.save(path)
    assert not path.exists()


def test_a_tensor_of_the_same_name_is_refused():
    model = nn.Module()
    model.add_module("files/a", nn.Linear(8, 4))
    model.forward = lambda x: model._modules["files/a"](x)
    with pytest.raises(BadFile, match=r"a tensor called files/a\.weight"):
        bundle_with({"a.weight": b""}, model)
