"""Damage in files of several loaders: made, counted and told. No rival runs."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import rivals
from rivals import main, table

# A loader whose files are twenty numbers: it accepts those whose last ten are right.
LOADER = """
import json, sys
from pathlib import Path
name, what, whole, *more = sys.argv[1:]
right = bytes(range(20))
if what == "make":
    Path(whole).write_bytes(right)
else:
    files = [Path(more[0], str(i)).read_bytes() for i in range(int(more[1]))]
    assert len(files[0]) == 20 and right not in files
    assert max(sum(map(int.__ne__, raw, right)) for raw in files) <= 8
    print("what a library prints")
    accepts = name != "kvc"
    answers = ["same" if accepts and f[10:] == right[10:] else "error" for f in files]
    print(json.dumps(answers))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs the command with that loader."""
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    monkeypatch.setattr(rivals, "LOADERS", script)

    def running(*options):
        command = ["rivals.py", str(tmp_path / "files"), *map(str, options)]
        monkeypatch.setattr(sys, "argv", command)
        return main()

    return running


def test_loaders_get_the_same_damage_each_time_and_a_row_each(run, tmp_path, capsys):
    page = tmp_path / "page.md"
    options = ("--cases", 40, "--gguf", sys.executable, "none", "--page", page)
    assert run(*options) == 0
    first, files = page.read_text(), [*(tmp_path / "files/gguf").iterdir()]
    assert "| kvc | 20 | 100.0% | 0.0% |" in first
    assert "executorch" not in first
    (row,) = (line for line in first.splitlines() if line.startswith("| gguf | 20 |"))
    assert "| 100.0% |" not in row
    assert len(files) == 41
    assert run(*options) == 0
    assert page.read_text() == first


def test_a_file_of_kvc_that_is_accepted_ends_with_1(run, tmp_path):
    script = tmp_path / "loader.py"
    script.write_text(LOADER.replace('name != "kvc"', "True"))
    assert run("--cases", 20) == 1


def test_a_table_has_a_share_of_each_kind():
    counts = Counter({"error": 3, "differs": 1, "nbytes": 1234})
    told = table({"kvc": counts}, 4, seed=7)
    assert "4 files of each format, seed 7" in told
    assert told.endswith("| kvc | 1,234 | 75.0% | 0.0% | 25.0% | 0.0% | 0.0% |\n")
