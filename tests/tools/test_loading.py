"""Options of the commands that load a bundle."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from delegated_partitions import delegated_program
from fake_backends import backend_of
from hand_built import write_bundle

from kvc.runtime import LoadError
from kvc.runtime.delegates.table import DELEGATES
from kvc.runtime.execution.delegate import Handle

KVC = Path(sys.executable).parent / "kvc"


class Missing(LoadError):
    template = "no libmine.so"


class Echo(Handle):
    """A handle that computes nothing."""

    def __init__(self, partition, data):
        pass

    def prepare(self, inputs, outputs, workspace, sizes):
        return lambda: None

    def close(self):
        pass


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A bundle and its input, and the `Options` that its backend is made with."""
    made = []

    class Mine(backend_of(Echo)):
        def __init__(self, options):
            super().__init__(options)
            made.append(options)

        @staticmethod
        def check_library():
            raise Missing

    monkeypatch.setitem(DELEGATES, "mine", Mine)
    write_bundle(tmp_path / "d.kvc", delegated_program(backend="mine"))
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    return ("run", tmp_path / "d.kvc", "-i", tmp_path / "x.npy"), made


@pytest.mark.parametrize(
    ("options", "reference"), [((), None), (("--reference",), True)]
)
def test_the_backend_is_told_whether_to_run_its_reference(
    kvc, told, options, reference
):
    command, made = told
    assert kvc(*command, *options).exit_code == 0
    assert [one.reference for one in made] == [reference]


def test_without_a_reference_a_missing_library_is_an_error(kvc, told):
    command, made = told
    result = kvc(*command, "--no-reference")
    assert result.exit_code == 1
    assert "no libmine.so" in result.stderr
    assert made == []


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "1.5"])
def test_a_number_of_threads_that_is_none_is_refused(kvc, told, wrong):
    command, _ = told
    result = kvc(*command, "--threads", wrong)
    assert result.exit_code == 2
    assert "--threads" in result.stderr


def test_more_threads_than_processors_are_refused(kvc, told):
    command, made = told
    result = kvc(*command, "--threads", 100_000)
    assert result.exit_code == 1
    assert "threads: expected 1 to " in result.stderr
    assert made == []


def test_threads_arrive(tiny):
    """In a process of its own, which computes for the first time."""
    command = [KVC, "generate", tiny, "def", "-n", "4", "--threads", "1"]
    script = (
        "import sys\n"
        "from kvc.tools.cli import main\n"
        "main(sys.argv[1:], standalone_mode=False)\n"
        "from kvc.runtime.threads import settle_threads\n"
        "print('threads', settle_threads(), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, command[1:])],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "64"},
    )
    assert done.stderr.splitlines()[-1] == "threads 1"
