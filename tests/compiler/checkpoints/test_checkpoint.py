import os
from pathlib import Path

import pytest
import torch
from checkpoint_files import entry, indexed, numbers, raw_file, sharded
from safetensors.torch import save_file

from kvc.compiler import Checkpoint
from kvc.compiler.checkpoints import checkpoint as module
from kvc.compiler.checkpoints.tensor_file import TensorFile
from kvc.schema.errors import (
    BadCheckpoint,
    CheckpointChanged,
    CheckpointError,
    PickleCheckpoint,
)

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def whole(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    stored = checkpoint.tensors[name]
    return stored.elements(0, torch.Size(stored.shape).numel()).reshape(stored.shape)


@pytest.mark.parametrize("given", ["", "model.safetensors"])
def test_a_folder_or_its_file_is_a_checkpoint(given: str, tmp_path: Path):
    save_file({"w": numbers(2, 3)}, tmp_path / "model.safetensors")
    (tmp_path / "training.bin").write_bytes(b"")
    assert torch.equal(whole(Checkpoint(tmp_path / given), "w"), numbers(2, 3))


def test_a_folder_with_one_file_of_any_name_is_a_checkpoint(tmp_path: Path):
    save_file({"w": numbers(3)}, tmp_path / "weights.safetensors")
    assert list(Checkpoint(tmp_path).tensors) == ["w"]


@pytest.mark.parametrize("given", ["", "model.safetensors.index.json"])
def test_a_sharded_checkpoint_is_read_through_its_index(given: str, tmp_path: Path):
    sharded(tmp_path, {ONE: {"a": numbers(4)}, TWO: {"b": numbers(2, 2) + 1}})
    with Checkpoint(tmp_path / given) as checkpoint:
        assert torch.equal(whole(checkpoint, "a"), numbers(4))
        assert torch.equal(whole(checkpoint, "b"), numbers(2, 2) + 1)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.zeros(0, 4),
        torch.tensor([True, False, True]),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([1, -(2**40)]),
    ],
)
def test_tensors_of_any_kind_are_read(tensor: torch.Tensor, tmp_path: Path):
    save_file({"w": tensor}, tmp_path / "model.safetensors")
    found = whole(Checkpoint(tmp_path), "w")
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found, tensor)


def test_a_range_is_read_and_nothing_else(tmp_path: Path):
    save_file({"w": numbers(2, 3)}, tmp_path / "model.safetensors")
    stored = Checkpoint(tmp_path).tensors["w"]
    assert stored.elements(2, 5).tolist() == [2.0, 3.0, 4.0]


def test_links_to_files_elsewhere_are_followed(tmp_path: Path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    save_file({"w": numbers(2)}, tmp_path / "blobs" / "5f3")
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "blobs" / "5f3")
    assert list(Checkpoint(tmp_path / "model").tensors) == ["w"]


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt"])
def test_a_pickle_is_refused_by_name(suffix: str, tmp_path: Path):
    path = tmp_path / f"pytorch_model{suffix}"
    torch.save({"w": numbers(2)}, path)
    for given in (path, tmp_path):
        with pytest.raises(
            PickleCheckpoint, match=r"run any code.*save_file"
        ) as caught:
            Checkpoint(given)
        assert caught.value.files == path.name


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_under_another_name_is_refused(zipped: bool, tmp_path: Path):
    path = tmp_path / "model.safetensors"
    torch.save({"w": numbers(2)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(PickleCheckpoint):
        Checkpoint(path)


def test_nothing_is_no_checkpoint(tmp_path: Path):
    with pytest.raises(CheckpointError, match="there is no such file"):
        Checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"neither model.safetensors nor"):
        Checkpoint(tmp_path)


def test_several_files_without_an_index_are_refused(tmp_path: Path):
    save_file({"a": numbers(1)}, tmp_path / "a.safetensors")
    save_file({"b": numbers(1)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="give the path of a file"):
        Checkpoint(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(BadCheckpoint, match="not a plain file"):
        Checkpoint(tmp_path)


def test_every_damaged_and_every_missing_shard_is_told(tmp_path: Path):
    raw_file(tmp_path / "a.safetensors", {"a": entry(0, 16, [4])}, bytes(15))
    raw_file(tmp_path / "b.safetensors", {"b": entry(0, 4, [7])}, bytes(4))
    names = ("a", "b", "c", "d")
    indexed(tmp_path, {name: f"{name}.safetensors" for name in names})
    with pytest.raises(BadCheckpoint) as caught:
        Checkpoint(tmp_path)
    first, second, third, fourth = caught.value.problems
    assert first.startswith("a.safetensors: it is cut short")
    assert second.startswith("b.safetensors: tensor 'b': F32 [7] takes 28 bytes")
    assert third == "c.safetensors: No such file or directory"
    assert fourth == "d.safetensors: No such file or directory"
    assert all(problem in str(caught.value) for problem in caught.value.problems)


def test_tensors_that_their_shard_does_not_have_are_told(tmp_path: Path):
    save_file({"a": numbers(4)}, tmp_path / ONE)
    indexed(tmp_path, {"a": ONE, "b": ONE, "c": ONE})
    with pytest.raises(BadCheckpoint, match=r"tensor 'b' is not in it.*\n.*'c' is not"):
        Checkpoint(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path):
    shards = {ONE: {"a": numbers(4), "b": numbers(1)}, TWO: {"a": numbers(4)}}
    sharded(tmp_path, shards)
    indexed(tmp_path, {"a": ONE, "b": TWO})
    save_file({"a": numbers(4), "b": numbers(1)}, tmp_path / TWO)
    with pytest.raises(BadCheckpoint, match=f"'a' is in {ONE} and in {TWO}"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "file",
    [
        "../x.safetensors",
        "/x.safetensors",
        "a/x.safetensors",
        "..",
        "",
        "x.bin",
        7,
        "x\0",
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(file: object, tmp_path: Path):
    (tmp_path / "a").mkdir()
    for place in (tmp_path.parent, tmp_path / "a"):
        save_file({"w": numbers(1)}, place / "x.safetensors")
    indexed(tmp_path, {"w": file})
    with pytest.raises(
        BadCheckpoint, match=r"'w' is in .*, which is not a plain file name"
    ):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', "{oops"])
def test_a_damaged_index_is_refused(text: str, tmp_path: Path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(BadCheckpoint, match=r"model.safetensors.index.json: it"):
        Checkpoint(tmp_path)


def test_a_name_that_stands_twice_in_an_index_is_refused(tmp_path: Path):
    text = f'{{"weight_map": {{"w": "{ONE}", "w": "{TWO}"}}}}'
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(BadCheckpoint, match="'w' stands in its JSON twice"):
        Checkpoint(tmp_path)


def test_a_file_that_is_cut_short_after_opening_is_an_error(tmp_path: Path):
    save_file({"w": numbers(4)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 90)
    with pytest.raises(CheckpointChanged, match=r"model.safetensors: cannot read w"):
        whole(checkpoint, "w")


def test_a_file_that_is_written_into_after_opening_is_an_error(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    save_file({"w": numbers(4)}, path)
    checkpoint = Checkpoint(tmp_path)
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\1\2\3\4")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    with pytest.raises(CheckpointChanged, match="the file changed after it was opened"):
        whole(checkpoint, "w")


def test_a_file_that_another_one_replaces_stays_what_was_opened(tmp_path: Path):
    save_file({"w": numbers(4)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    save_file({"w": numbers(4) + 1}, tmp_path / "new")
    (tmp_path / "new").rename(tmp_path / "model.safetensors")
    assert torch.equal(whole(checkpoint, "w"), numbers(4))


def test_a_closed_checkpoint_cannot_be_read(tmp_path: Path):
    save_file({"w": numbers(4)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(CheckpointChanged, match="the Checkpoint was closed before"):
        whole(checkpoint, "w")


def test_a_name_that_no_system_takes_is_refused():
    with pytest.raises(CheckpointError, match="File name too long"):
        Checkpoint("a" * 5000)


def test_one_damaged_shard_leaves_no_other_file_open(tmp_path: Path, monkeypatch):
    opened = []
    monkeypatch.setattr(module, "TensorFile", lambda p: noted(opened, p))
    save_file({"w": numbers(4)}, tmp_path / ONE)
    (tmp_path / TWO).write_bytes(b"x")
    with pytest.raises(BadCheckpoint):
        Checkpoint(indexed(tmp_path, {"w": ONE, "v": TWO}))
    assert [file.close.alive for file in opened] == [False]


def noted(opened: list[TensorFile], path: str) -> TensorFile:
    opened.append(TensorFile(path))
    return opened[-1]
