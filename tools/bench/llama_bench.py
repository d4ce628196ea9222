"""Run llama.cpp's own llama-bench over the same tests, as a peer of `kvc bench`.

In: a GGUF file. Out: the seconds of each test. llama-bench warms up before each test by
itself, and counts neither loading nor the tokens that a depth takes.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence

import click

from kvc.tools.bench.plan import SpeedTest
from kvc.tools.text import escape


def find_llama_bench(program: str) -> str:
    """Return the path of llama-bench.

    Raises:
        ClickException: there is no such program.
    """
    found = shutil.which(program)
    if found is None:
        raise click.ClickException(
            f"there is no {program}, which --against needs; build llama.cpp (its "
            "target llama-bench), and name the program by --llama-bench PATH"
        )
    return found


def run_llama_bench(
    program: str, model: str, tests: Sequence[SpeedTest], threads: int
) -> tuple[float, ...]:
    """Return the seconds of each test, run once after llama-bench's own warm-up.

    Raises:
        ClickException: it fails, or prints something else.
    """
    return tuple(_run(program, model, test, threads) for test in tests)


def _run(program: str, model: str, test: SpeedTest, threads: int) -> float:
    asked = ("-p", test.prompt, "-n", test.steps, "-d", test.depth)
    command = [program, "-m", model, *asked, "-t", threads, "-r", 1, "-o", "json"]
    done = _output_of([str(part) for part in command])
    try:
        if done.returncode:
            raise ValueError(f"exit code {done.returncode}")
        (found,) = json.loads(done.stdout)
        return float(found["samples_ns"][0]) / 1e9
    except (ValueError, TypeError, KeyError, IndexError) as error:
        said = done.stderr.strip().splitlines()
        reason = escape(said[-1]) if said else repr(error)
        raise click.ClickException(f"llama-bench fails on {model}: {reason}") from error


def _output_of(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="backslashreplace"
        )
    except OSError as error:  # no program of this machine, though marked as one
        reason = f"cannot run {escape(command[0])}: {error.strerror}"
        raise click.ClickException(reason) from error
