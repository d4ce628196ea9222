"""Files of Ethos-U NPUs, which Vela compiles: `kvc export`, and `kvc dump` of them."""

import io
import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner
from ethosu_models import MODELS, RECIPES, compiled, decoder, stream

from kvc.runtime import load
from kvc.runtime.delegates import library_package
from kvc.runtime.delegates.ethosu import vela
from kvc.schema.errors import BadSetting, ExportFailed, MissingLibrary
from kvc.tools.cli import main

U85, U55 = "ethosu:u85-256", "ethosu:u55-128"
needs_vela = pytest.mark.skipif(
    find_spec("ethosu") is None, reason="no Vela here: pip install 'kvc[ethosu]'"
)


@needs_vela
def test_a_partition_is_exported_at_each_of_its_sizes(tmp_path: Path):
    with load(decoder(tmp_path)) as program:
        raw = program.pack(U85)[0].content()
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        told = json.loads(archive.read("report.json"))["partitions"]
        files = {one["file"]: one["inputs"][0]["shape"] for one in told}
        assert {*archive.namelist()} == {"report.json", *files}
    assert files["partition0_seq=8.tflite"] == [1, 8, 32]
    assert files["partition0_seq=1.tflite"] == [1, 1, 32]


@needs_vela
@pytest.mark.parametrize("target", [U85, U55])
def test_a_stream_is_compiled_for_an_npu_all_of_it(tmp_path: Path, target: str):
    _, path, _ = stream(tmp_path)
    with load(path) as program:
        (made,) = program.pack(target)
        raw = made.content()
        assert program.pack(target)[0].content() == raw
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        assert archive.namelist() == ["report.json", "partition0.tflite"]
        report = json.loads(archive.read("report.json"))
        assert archive.read("partition0.tflite")[4:8] == b"TFL3"
    (one,) = report["partitions"]
    assert report["target"] == f"{target.partition(':')[2]}-vela5.2.0"
    assert sorted(given["is"] for given in one["inputs"])[-1] == "state layers.2.past"
    assert [made["is"] for made in one["outputs"]].count("output 0") == 1
    assert one["cycles"] > 1000
    assert one["macs"] > 500
    assert 0 < one["sram_nbytes"] < 4096


@needs_vela
def test_dump_shows_what_an_exported_file_takes(tmp_path: Path):
    _, path, _ = stream(tmp_path)
    made, runner = str(tmp_path / "stream.zip"), CliRunner()
    done = runner.invoke(main, ["export", str(path), "--target", U85, "-o", made])
    assert done.exit_code == 0, done.output
    shown = runner.invoke(main, ["dump", made]).output
    assert "a file for u85-256-vela5.2.0" in shown
    assert "partition0.tflite  forward" in shown
    told = json.loads(runner.invoke(main, ["dump", made, "--json"]).output)
    (one,) = told["exported"]["partitions"]
    assert f"{one['cycles']:,}" in shown
    refused = runner.invoke(main, ["dump", made, "--memory"])
    assert "has no such tables" in refused.output


def reported(**counts: int) -> bytes:
    usual = dict.fromkeys(("sram_nbytes", "other_nbytes", "cycles", "macs"), 1)
    one = {"file": "f", "method": "m", "inputs": [], "outputs": [], **usual, **counts}
    return json.dumps({"target": "t", "partitions": [one]}).encode()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("other.txt", b"{}", "report.json"),
        ("report.json", b"[]", "damaged"),
        ("report.json", b'{"target": 3, "partitions": []}', "3 is no str"),
        ("report.json", b"[" * 100_000, "damaged"),
        ("report.json", reported(sram_nbytes=10**400), "a count below 0 or above"),
        ("report.json", reported(cycles=-1), "a count below 0 or above"),
    ],
)
def test_dump_refuses_archives_that_are_no_exports(tmp_path, name, content, words):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, content)
    found = CliRunner().invoke(main, ["dump", str(tmp_path / "a.zip")])
    assert isinstance(found.exception, SystemExit)
    assert words in found.output


def test_dump_refuses_an_encrypted_archive(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("report.json", reported())
    raw = bytearray((tmp_path / "a.zip").read_bytes())
    raw[raw.rfind(b"PK\x01\x02") + 8] |= 1
    raw[6] |= 1
    (tmp_path / "a.zip").write_bytes(raw)
    found = CliRunner().invoke(main, ["dump", str(tmp_path / "a.zip")])
    assert isinstance(found.exception, SystemExit)
    assert "encrypted" in found.output


@needs_vela
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODELS)
def test_models_are_compiled_for_both_npus(tmp_path: Path, name: str, recipe: str):
    _, path, _ = compiled(tmp_path, name, recipe)
    with load(path) as program:
        for target in (U85, U55):
            assert program.pack(target)[0].nbytes > 1000


def test_an_unknown_target_is_refused_with_those_that_there_are(tmp_path: Path):
    _, path, _ = stream(tmp_path)
    with load(path) as program, pytest.raises(BadSetting, match="ethosu:u55-32, "):
        program.pack("ethosu:u65-256")


@pytest.mark.parametrize("found", [None, "4.0.0"])
def test_a_missing_or_other_vela_is_refused_in_words(tmp_path, monkeypatch, found):
    def version(name: str) -> str:
        if found is None:
            raise library_package.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(library_package, "version", version)
    _, path, _ = stream(tmp_path)
    with load(path) as program, pytest.raises(MissingLibrary) as error:
        program.pack(U85)
    assert "pip install 'kvc[ethosu]'" in str(error.value)
    assert (found or "is not installed") in str(error.value)


@pytest.mark.parametrize(
    ("code", "seconds", "words"),
    [
        ("import os; os.abort()", 60, "Vela ended with -6"),
        ("import sys; print('no such op'); sys.exit(3)", 60, "no such op"),
        ("while True: pass", 0.5, "took more than 0.5 seconds"),
        ("print('CPU operators = 1 (50.0%)')", 60, "left to a processor"),
        ("print('CPU operators = 0 (0.0%)')", 60, "Vela's output cannot be read"),
    ],
)
def test_a_compiler_that_crashes_or_hangs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code, seconds, words
):
    monkeypatch.setattr(vela, "COMMAND", ("-c", code))
    monkeypatch.setattr(vela, "SECONDS", seconds)
    with pytest.raises(ExportFailed, match=words):
        vela.compile_graph(b"", "ethos-u85-256", "u85", "a graph")


@needs_vela
def test_vela_refuses_a_damaged_file_without_harm():
    with pytest.raises(ExportFailed):
        vela.compile_graph(b"TOSA" * 40, "ethos-u85-256", "u85", "a graph")
