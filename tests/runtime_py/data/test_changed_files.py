"""Files that change under a live program: an error or the old data, never a signal.

All of it happens in one child process, since a mistake would end it with SIGBUS.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys
from pathlib import Path
import numpy as np
from data_programs import table_program, write_data_bundle
from kvc.runtime import (KvcError, load)

INDEX = np.array([90])
OTHER = np.full(9000, 7, np.float32)

def truncate(path):
    os.truncate(path, 4096)

def rename(path):
    new = path.with_name("new")
    new.write_bytes(b"something else")
    new.rename(path)

def write(path):
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"something else")

def remove(path):
    path.unlink()

def attempt(action):
    try:
        return float(action())
    except KvcError as error:
        return type(error).__name__

def run(folder, mode, external, change):
    built = table_program(100, other=OTHER)
    bundle = write_data_bundle(folder / "t.kvc", built, external)
    (path,) = folder.glob("*.kvd") if external else [bundle]
    with load(bundle, mode) as program, program.data["table"] as held:
        view = program.data["table"].array()
        program.row(INDEX)
        change(path)
        yield attempt(lambda: program.row(INDEX)[0, 0])
        yield attempt(lambda: held.array()[90, 0])
        yield attempt(lambda: program.data["other"].array()[0])
        program.release()
        held.free()
        yield attempt(lambda: program.total()[0, 0])

found = {}
for mode in ("map", "read", "huge"):
    for external in (False, True):
        for change in (truncate, rename, write, remove):
            key = f"{mode} {change.__name__} {external}"
            folder = Path(sys.argv[1]) / key.replace(" ", "_")
            folder.mkdir()
            found[key] = list(run(folder, mode, external, change))
print(json.dumps(found))
"""
SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("changed")
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=SUPPORT
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


CHANGED = "FileChanged"
# A call, the held data, data not used before, and all of it after a release.
OLD = [90, 90, 7, 4950]
OWN = [90, 90, CHANGED, CHANGED]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("change", ["truncate", "write"])
def test_a_mapped_file_that_changed_is_not_used_any_more(found, change, external):
    assert found[f"map {change} {external}"] == [CHANGED] * 4


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("change", ["truncate", "write"])
@pytest.mark.parametrize("mode", ["read", "huge"])
def test_own_memory_survives_the_change_but_reads_no_more(
    found, mode, change, external
):
    assert found[f"{mode} {change} {external}"] == OWN


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("change", ["rename", "remove"])
@pytest.mark.parametrize("mode", ["map", "read", "huge"])
def test_a_file_that_lost_its_name_stays_readable(found, mode, change, external):
    assert found[f"{mode} {change} {external}"] == OLD
