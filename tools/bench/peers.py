"""Peers of `kvc bench --against`: other runtimes, which run the same tests.

In: a GGUF file, which llama.cpp's own llama-bench runs, or an ONNX model as Optimum
exports it, which ONNX Runtime runs. Out: the seconds of each test. llama-bench warms up
before each test by itself, and counts neither loading nor the tokens that are in the
cache before the test. ONNX Runtime runs in a process of its own (`onnx_process.py`),
with a Python that has onnxruntime.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click

from kvc.schema.text import escape
from kvc.tools.bench.plan import SpeedTest

_PROCESS: Final = Path(__file__).with_name("onnx_process.py")


@dataclass(frozen=True, slots=True)
class Peer:
    """A model that another runtime runs.

    Attributes:
        path, nbytes: path of the model's file; bytes of the file and its data files.
        name: name of the runtime.
        seconds: runs tests with a number of threads, and returns the seconds of each
            test.
    """

    path: str
    nbytes: int
    name: str
    seconds: Callable[[Sequence[SpeedTest], int], tuple[float, ...]]


def find_peer(path: str, llama_bench: str, python: str) -> Peer:
    """Return the peer that runs a file.

    Args:
        path: path of a GGUF or ONNX file.
        llama_bench: llama-bench program, for a GGUF file.
        python: Python with onnxruntime, for an ONNX file.

    Raises:
        ClickException: the file is missing or of another kind, or the program is
            missing.
    """
    if path.endswith(".onnx"):
        check_onnxruntime(python)
        return Peer(path, _nbytes(path), "onnxruntime", partial(run_onnx, python, path))
    if not path.endswith(".gguf"):
        raise click.ClickException(
            f"--against {escape(path)}: give a .gguf file, which llama.cpp runs, or a "
            ".onnx file, which ONNX Runtime runs"
        )
    runs = partial(run_llama_bench, find_llama_bench(llama_bench), path)
    return Peer(path, _nbytes(path), "llama.cpp", runs)


def _nbytes(model: str) -> int:
    """Return the size of a file, and of an ONNX model with its data files.

    Raises:
        ClickException: a file is missing.
    """
    path = Path(model)
    try:
        beside = [path.with_name(f"{path.name}{end}") for end in ("_data", ".data")]
        beside.append(path.with_suffix(".data"))
        found = [each for each in beside if path.suffix == ".onnx" and each.is_file()]
        return sum(each.stat().st_size for each in (path, *found))
    except OSError as error:
        what = f"cannot read {escape(model)}: {error.strerror}"
        raise click.ClickException(what) from error


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
        ClickException: the program fails, or prints something else.
    """
    return tuple(_run_test(program, model, test, threads) for test in tests)


def _run_test(program: str, model: str, test: SpeedTest, threads: int) -> float:
    asked = ("-p", test.prompt, "-n", test.steps, "-d", test.depth)
    command = [program, "-m", model, *asked, "-t", threads, "-r", 1, "-o", "json"]
    with _failures("llama-bench", model, [str(part) for part in command]) as printed:
        (found,) = json.loads(printed)
        return float(found["samples_ns"][0]) / 1e9


def check_onnxruntime(python: str) -> None:
    """Check that a Python has onnxruntime.

    Raises:
        ClickException: the Python has no onnxruntime, or the path is no Python.
    """
    if output_of([python, "-P", "-c", "import onnxruntime"]).returncode:
        raise click.ClickException(
            f"{escape(python)} cannot import onnxruntime, which --against needs for a "
            ".onnx file; pip install onnxruntime, or name a Python that has it by "
            "--onnx-python PATH"
        )


def run_onnx(
    python: str, model: str, tests: Sequence[SpeedTest], threads: int
) -> tuple[float, ...]:
    """Return the seconds of each test, run once after a warm-up.

    Raises:
        ClickException: the process fails, or the model is no decoder with growing
            caches.
    """
    plan = {
        "model": model,
        "threads": threads,
        "tests": [asdict(test) for test in tests],
    }
    command = [python, "-P", str(_PROCESS), json.dumps(plan)]
    with _failures("ONNX Runtime", model, command) as printed:
        return tuple(map(float, json.loads(printed.splitlines()[-1])))


@contextmanager
def _failures(name: str, model: str, command: Sequence[str]) -> Iterator[str]:
    """Run a program, yield its output, and turn its failure into a `ClickException`.

    The message has the last line that the program wrote to stderr, if it wrote any.

    Raises:
        ClickException: the program fails, or prints something else.
    """
    done = output_of(command)
    try:
        if done.returncode:
            raise ValueError(f"exit code {done.returncode}")
        yield done.stdout
    except (ValueError, TypeError, KeyError, IndexError) as error:
        said = done.stderr.strip().splitlines()
        reason = f"{name} fails on {escape(model)}: "
        reason += escape(said[-1]) if said else repr(error)
        raise click.ClickException(reason) from error


def output_of(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Raises:
        ClickException: the system cannot run the program on this machine.
    """
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="backslashreplace"
        )
    except OSError as error:
        reason = f"cannot run {escape(command[0])}: {error.strerror}"
        raise click.ClickException(reason) from error
