"""Run llama.cpp's own llama-bench over the same tests, as a peer of `kvc bench`.

In: a GGUF file. Out: the seconds of each test. llama-bench warms up before each test by
itself, and counts neither loading nor the tokens that a depth takes.
"""

import json
import shutil
from collections.abc import Sequence

import click

from kvc.tools.bench.plan import SpeedTest
from kvc.tools.bench.running import check_ended, failure, output_of


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
    done = output_of([str(part) for part in command])
    try:
        check_ended(done)
        (found,) = json.loads(done.stdout)
        return float(found["samples_ns"][0]) / 1e9
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise failure("llama-bench", model, done, error) from error
