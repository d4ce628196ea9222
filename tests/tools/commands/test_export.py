"""`kvc export` and `kvc compile --pack` for a target of fixed shapes."""

import json
from pathlib import Path

import numpy as np
import pytest
from coreai_device import use_numpy_core_ai
from fixed_backend import MADE, TARGET, read_images, recipe, register_fixed

from kvc.runtime import KvcError, load
from kvc.schema.container import BundleFile

PROMPT = np.arange(3, 40)[None]


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch):
    """Register the backend for one test."""
    register_fixed(monkeypatch)


def packed_bundle(kvc, folder: Path) -> Path:
    path, made = folder / "m.kvc", recipe(folder, seq=(1, 4, 8))
    command = ("compile", "tiny_decoder:factory", "-q", "-o", path, "--recipe", made)
    result = kvc(*command, "--pack", TARGET)
    assert result.exit_code == 0, result.output
    return path


def test_a_bundle_may_hold_the_file_and_nothing_is_made_at_load(kvc, tmp_path: Path):
    path = packed_bundle(kvc, tmp_path)
    with BundleFile.open(path) as file:
        (named,) = [n for n in file.program.names if n.format == f"fixed:{TARGET}"]
        assert all(
            file.program.names.index(named) in d.names for d in file.program.delegates
        )
    MADE.clear()
    with load(path) as program, program.session() as session:
        assert np.isfinite(session.prefill(PROMPT[:, :11])).all()
    assert MADE == []


def test_a_damaged_file_of_a_target_is_refused(kvc, tmp_path: Path):
    path = packed_bundle(kvc, tmp_path)
    (data,) = tmp_path.glob("*.kvd")
    raw = data.read_bytes()
    MADE.clear()
    data.write_bytes(raw.replace(b'"npu-1"', b'"npu-9"'))
    with (
        load(path) as program,
        program.session() as session,
        pytest.raises(KvcError, match="damaged"),
    ):
        session.prefill(PROMPT[:, :4])
    data.unlink()
    with load(path) as program, program.session() as session:
        assert np.isfinite(session.prefill(PROMPT[:, :4])).all()
    assert MADE
    for wrong in (
        b"",
        b"{}",
        b'{"target": "npu-9"}',
        b'{"target": "npu-1", "partitions": 1}',
    ):
        with pytest.raises((ValueError, KeyError, TypeError)):
            read_images(wrong, 0)


def test_export_writes_the_file(kvc, tmp_path: Path):
    path = packed_bundle(kvc, tmp_path)
    out = tmp_path / "m.npu"
    told = kvc("export", path, "--target", f"fixed:{TARGET}", "-o", out)
    assert told.exit_code == 0, told.output
    assert f"for fixed:{TARGET}" in told.stderr
    assert json.loads(out.read_bytes())["target"] == TARGET
    wrong = kvc("export", path, "--target", "fixed:npu-2", "-o", out)
    assert wrong.exit_code == 1
    assert f"here fixed:{TARGET}" in wrong.stderr
    other = kvc("export", path, "--target", "mps:1", "-o", out)
    assert "a backend that the bundle has a recipe for, here fixed" in other.stderr
    kept = kvc("export", path, "--target", f"fixed:{TARGET}", "-o", path)
    assert "a bundle is there" in kept.stderr


def test_descriptions_say_the_buckets(kvc, tmp_path: Path):
    path = packed_bundle(kvc, tmp_path)
    assert "      seq in 1, 4, 8" in kvc("dump", path).stdout.splitlines()
    told = json.loads(kvc("dump", path, "--json").stdout)["methods"]
    assert {tuple(s["sizes"]) for m in told for s in m["symbols"]} == {(1, 4, 8)}
    refused = kvc("dump", path, "--at", "seq=5")
    assert "seq: expected 1, 4, 8" in refused.stderr
    checked = kvc("check", path)
    assert checked.exit_code == 2  # it has no results


def test_a_bundle_of_buckets_keeps_and_checks_sample_results(kvc, tmp_path: Path):
    path, made = tmp_path / "m.kvc", recipe(tmp_path, seq=(4, 8))
    command = ("compile", "tiny_decoder:factory", "-q", "-o", path, "--recipe", made)
    result = kvc(*command, "--check")
    assert result.exit_code == 0, result.output
    checked = kvc("check", path)
    assert checked.exit_code == 0, checked.output


def test_a_target_whose_file_is_a_folder_has_a_folder_written(
    kvc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    use_numpy_core_ai(monkeypatch)
    path, out = tmp_path / "m.kvc", tmp_path / "m.aimodel"
    command = ("compile", "tiny_decoder:factory", "-q", "-o", path)
    assert kvc(*command, "--recipe", "coreai_fp32").exit_code == 0
    told = kvc("export", path, "--target", "coreai", "-o", out)
    assert told.exit_code == 0, told.output
    assert "for coreai" in told.stderr
    assert {each.suffix for each in out.iterdir()} == {".json", ".bin"}
    again = kvc("export", path, "--target", "coreai:v27", "-o", out)
    assert "it exists; give another name" in again.stderr
