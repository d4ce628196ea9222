"""Run an ONNX model of a decoder by ONNX Runtime, as a peer of `kvc bench`.

In: a model as Optimum exports them. Out: the seconds of each test. It runs in a process
of its own, of a Python that has onnxruntime: `onnx_process.py`.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from kvc.schema.text import escape
from kvc.tools.bench.plan import SpeedTest
from kvc.tools.bench.running import check_ended, failure, output_of

_PROCESS: Final = Path(__file__).with_name("onnx_process.py")


def check_onnxruntime(python: str) -> None:
    """Check that a Python has onnxruntime.

    Raises:
        ClickException: it has not, or is none.
    """
    done = output_of([python, "-P", "-c", "import onnxruntime"])
    if done.returncode:
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
        ClickException: it fails, or the model is no decoder with growing caches.
    """
    plan = {
        "model": model,
        "threads": threads,
        "tests": [asdict(test) for test in tests],
    }
    done = output_of([python, "-P", str(_PROCESS), json.dumps(plan)])
    try:
        check_ended(done)
        return tuple(map(float, json.loads(done.stdout.splitlines()[-1])))
    except (ValueError, TypeError, IndexError) as error:
        raise failure("ONNX Runtime", model, done, error) from error
