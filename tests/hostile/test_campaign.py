"""A small share of the hostile files, the same ones each day."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_files import BUNDLES
from hostile_seeds import SEEDS, write_seed
from resident_memory import LINUX

CAMPAIGN = Path(__file__).with_name("campaign.py")


def test_each_seed_is_named():
    assert list(SEEDS) == list(BUNDLES)


@pytest.fixture
def campaign(tmp_path):
    """Run the command; return what it printed and its record."""

    def run(*options):
        command = [sys.executable, str(CAMPAIGN), str(tmp_path), "--nice", "0"]
        command += options
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        record = tmp_path / "record.json"
        return done, json.loads(record.read_text()) if record.exists() else None

    return run


@LINUX
def test_no_hostile_file_is_accepted_and_computes_two_things(campaign, tmp_path):
    seeds = ("growing", "int8 cache")
    (tmp_path / "seeds").mkdir()
    for name in seeds:  # here, where torch.export is at work already
        write_seed(name, tmp_path / "seeds" / f"{name}.kvc")
    done, record = campaign("--cases", "24", "--seeds", *seeds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert record["findings"] == []
    assert record["next"] == dict.fromkeys(seeds, 24)
    assert record["kinds"]["same"] > 1
    assert record["kinds"]["refused"] > 18
    assert len(record["checks"]) > 10
    again, after = campaign("--cases", "25", "--seeds", *seeds)  # it goes on
    assert again.returncode == 0
    assert after["next"] == dict.fromkeys(seeds, 25)
    assert "compiling" not in again.stderr


@LINUX
def test_no_hostile_text_session_or_data_file_does_what_it_should_not(
    campaign, tmp_path
):
    (tmp_path / "seeds").mkdir()
    write_seed("growing", tmp_path / "seeds" / "growing.kvc")
    templates = ("template of turns", "template of tools")
    others = (
        *("tokenizer of bytes", "tokenizer of words", "tokenizer of chances"),
        *("recipes", "session of growing", "data of growing"),
    )
    for cases, seeds in ((15, others), (2, templates)):
        done, record = campaign("--cases", str(cases), "--seeds", *seeds)
        assert done.returncode == 0, done.stdout + done.stderr
        assert record["findings"] == []
        assert {name: record["next"][name] for name in seeds} == dict.fromkeys(
            seeds, cases
        )
    assert record["kinds"]["same"] > 12
    assert record["kinds"]["refused"] > 36


def test_a_page_is_a_summary_and_all_checks_are_told_beside_it(campaign, tmp_path):
    found = {"refused": 3, "same": 2}
    counts = {"growing": 3, "tokenizer of words": 1, "tokenizer of bytes": 1}
    checks = {f"a.py, f: check {number}": number for number in range(1, 13)}
    record = {"next": counts, "kinds": found, "checks": checks, "findings": []}
    (tmp_path / "record.json").write_text(json.dumps({**record, "seconds": 36}))
    done, _ = campaign("--page", str(tmp_path / "page.md"), "--checks")
    page = (tmp_path / "page.md").read_text()
    assert page.startswith(
        "# Hostile files\n\n5 variants of 3 files were tried in 0.01"
    )
    assert "| `tokenizer` | 2 |" in page
    assert "| `a.py, f: check 3` | 3 |" in page
    assert "check 2`" not in page
    told = done.stdout.splitlines()
    assert told[0].split(maxsplit=1) == ["12", "a.py, f: check 12"]
    assert sum(line.strip().startswith("0 ") for line in told) > 300
    assert len(page.splitlines()) < 60
