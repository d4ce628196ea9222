import json
import os

import pytest
from named_bytes import SMALL, save_data
from sealing import reseal_header

from kvc.schema.text import size


@pytest.fixture
def pair(tmp_path):
    """The paths of a bundle and of its data file."""
    saved = save_data(tmp_path / "m.kvc", SMALL, external=True)
    return tmp_path / "m.kvc", tmp_path / saved.program.files[1].name


def test_a_whole_bundle_passes(kvc, sample):
    result = kvc("verify", sample)
    assert result.exit_code == 0
    assert ": whole (2 methods, 2 states, 3 blobs, " in result.stdout
    (facts,) = json.loads(kvc("verify", sample, "--json").stdout)["files"]
    assert facts["ok"] is True
    assert facts["problem"] is None
    assert facts["nbytes"] == sample.stat().st_size


def test_a_flipped_bit_in_a_weight_names_it(kvc, sample):
    content = bytearray(sample.read_bytes())
    content[130] ^= 1
    sample.write_bytes(content)
    result = kvc("verify", sample)
    assert result.exit_code == 1
    assert "weight is damaged" in result.stderr


def test_data_files_are_checked_with_the_bundle(kvc, pair):
    path, data = pair
    line = kvc("verify", path).stdout
    nbytes = path.stat().st_size + data.stat().st_size
    assert line.startswith(f"{path} and {data.name}: whole (0 methods, 0 states, ")
    assert f"4 blobs, {size(nbytes)}; " in line
    (facts,) = json.loads(kvc("verify", path, "--json").stdout)["files"]
    assert facts["nbytes"] == nbytes
    assert [file["path"] for file in facts["files"]] == [str(path), str(data)]


def test_a_data_file_alone(kvc, pair):
    _, data = pair
    assert kvc("verify", data).stdout.startswith(f"{data}: whole (4 blobs, 8.81 kB; ")
    os.truncate(data, 8000)
    result = kvc("verify", data)
    assert result.exit_code == 1
    assert "cut short" in result.stderr


def test_a_flipped_bit_in_a_data_file_is_found(kvc, pair):
    path, data = pair
    content = bytearray(data.read_bytes())
    content[130] ^= 1
    data.write_bytes(content)
    for file, what in ((path, "a = tied"), (data, "blob 0")):
        result = kvc("verify", file)
        assert result.exit_code == 1
        assert f"{data}: {what} is damaged" in result.stderr


def test_blobs_of_a_data_file_that_the_bundle_does_not_use_are_checked_too(
    kvc, pair, tmp_path
):
    _, data = pair
    path = tmp_path / "one.kvc"
    save_data(path, {"a": SMALL["a"]}, external=True, reuse=[data])
    content = bytearray(data.read_bytes())
    content[4100] ^= 1
    data.write_bytes(content)
    assert "blob 2 is damaged" in kvc("verify", path).stderr


def test_data_files_are_looked_for_in_other_folders(kvc, pair, tmp_path):
    path, data = pair
    (tmp_path / "store").mkdir()
    data.rename(tmp_path / "store" / data.name)
    result = kvc("verify", path)
    assert result.exit_code == 2  # it may be whole
    assert f"its data file {data.name}" in result.stderr
    folders = ["--data-folder", tmp_path, "--data-folder", tmp_path / "store"]
    assert kvc("verify", path, *folders).exit_code == 0


@pytest.mark.parametrize("content", [b"", b"hello", bytes(200)])
def test_what_is_no_kvc_file_is_told(kvc, tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    result = kvc("verify", tmp_path / "x")
    assert result.exit_code == 1
    assert "not a kvc file" in result.stderr


def test_several_files_are_each_checked(kvc, pair, tmp_path):
    path, data = pair
    result = kvc("verify", path, data)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2
    (tmp_path / "x").write_bytes(b"hello")
    result = kvc("verify", tmp_path / "none", tmp_path / "x", path)
    assert result.exit_code == 1
    assert "cannot read" in result.stderr
    assert "not a kvc file" in result.stderr
    assert str(path) in result.stdout


def test_a_file_that_cannot_be_read_is_not_called_damaged(kvc, tmp_path):
    result = kvc("verify", tmp_path / "none.kvc")
    assert result.exit_code == 2
    assert "cannot read" in result.stderr


def test_a_data_file_of_another_build_is_the_bad_answer(kvc, pair, tmp_path):
    path, data = pair
    other = save_data(tmp_path / "o.kvc", {"a": bytes(70)}, external=True)
    (tmp_path / other.program.files[1].name).replace(data)
    result = kvc("verify", path)
    assert result.exit_code == 1
    assert "it belongs to another build" in result.stderr


def test_another_version_of_the_format_is_not_called_damaged(kvc, sample):
    raw = sample.read_bytes()
    sample.write_bytes(reseal_header(raw[:8] + b"\7\0\0\0" + raw[12:]))
    result = kvc("verify", sample)
    assert result.exit_code == 2
    assert "format version 7" in result.stderr


def test_json_tells_of_several_files(kvc, pair, tmp_path):
    (tmp_path / "x").write_bytes(b"hello")
    result = kvc("verify", tmp_path / "none", tmp_path / "x", *pair, "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["version"] == 2
    assert [one["ok"] for one in told["files"]] == [None, False, True, True]
    codes = [one["code"] for one in told["files"]]
    assert codes == ["FileProblem", "BadMagic", None, None]
    assert "not a kvc file" in told["files"][1]["problem"]
    assert "not a kvc file" in result.stderr
    assert told["files"][3]["files"][0]["path"] == str(pair[1])
