"""Amounts of bytes and sizes, and the options of loading."""

import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from delegated_partitions import delegated_program
from fake_backends import backend_of
from hand_built import write_bundle

from kvc.runtime import LoadError
from kvc.runtime.delegates.table import DELEGATES
from kvc.runtime.execution.delegate import Handle
from kvc.tools.options import nbytes_of, sizes_of, whole_number

KVC = Path(sys.executable).parent / "kvc"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("512M", 512 * 10**6), ("1.5G", 1_500_000_000), ("100k", 100_000)],
)
def test_bytes_have_decimal_units(text, nbytes):
    assert nbytes_of(text, "--max-ram") == nbytes


@pytest.mark.parametrize("text", ["", "M", "-1", "-5M", "5Q", "nan", "inf", "1e999"])
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(click.BadParameter, match="expected bytes"):
        nbytes_of(text, "--max-ram")


def test_what_must_be_a_byte_at_least_is_not_none():
    assert nbytes_of("1", "--fit", least=1) == 1
    with pytest.raises(click.BadParameter, match="expected bytes"):
        nbytes_of("0", "--fit", least=1)


def test_sizes_have_names():
    assert sizes_of("capacity=4096, tokens=5") == {"capacity": 4096, "tokens": 5}
    assert sizes_of(None) == {}


@pytest.mark.parametrize(
    "text", ["capacity", "capacity=", "n=-1", "n=1.5", "n=1,n=2", "n=" + "9" * 5000]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(click.BadParameter, match="each name once"):
        sizes_of(text)


def test_a_number_has_no_more_digits_than_any_size():
    assert whole_number("9" * 18) == 10**18 - 1
    assert whole_number("9" * 5000) is None


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
