"""What `xnnpack.py run` has measured, as JSON: `results/*.json` have this form.

In: the figures of rounds. Out: one object with what was run, when and on what, each
stack's medians with the least and the most of its rounds, and their limits.
`readme_picture.py` draws it.
"""

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from data_bench import Samples
from xnnpack_limits import PROBE, Point

SPEEDS = {
    "prefill 128": ("prefill_128_s", 128),
    "prefill 512": ("prefill_512_s", 512),
    "decode at 128": ("decode_128_s", 1),
    "decode at 1,024": ("decode_1024_s", 1),
}
MOMENTS = {"loaded": "loaded", "first token": "first", "in the end": "ran"}
_ASK = (
    "import importlib.metadata as m, json, sys\n"
    "there = {each.metadata['Name'] for each in m.distributions()}\n"
    "print(json.dumps({n: m.version(n) for n in sys.argv[1:] if n in there}))"
)
_LIST = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")  # of numbers: one line each


def results_of(
    found: Mapping[str, Samples], nbytes: Mapping[str, int], points: Sequence[Point]
) -> dict[str, object]:
    """Return stacks, limits, and all figures of all rounds."""
    names = [name for name in found if name != PROBE]
    return {
        "stacks": [_stack(name, found[name], nbytes[name]) for name in names],
        "limits": [
            {key: _short(value) for key, value in asdict(point).items()}
            for point in points
        ],
        "rounds": {name: list(samples.rounds) for name, samples in found.items()},
    }


def write_results(results: Mapping[str, object], path: Path) -> None:
    """Write them, with numbers that belong together on one line."""
    text = json.dumps(results, indent=1)
    flat = _LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{flat}\n")


def about(model: str, machine: str, threads: int) -> dict[str, object]:
    """Return what was run, when, and on what; paths of this machine are left out."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    shown = ["PATH" if os.sep in word else word for word in words]
    return {
        "model": model,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine,
        "command": " ".join(["python", *shown]),
        "threads": threads,
    }


def versions_of(llama: Path | None, pythons: Mapping[str, str]) -> dict[str, str]:
    """Return versions of Python and of the packages that stacks are made of.

    Args:
        llama: sources of llama-cpp-python, if they are given.
        pythons: packages, with spaces between -> the Python that has them, or "".
    """
    versions = {"python": sys.version.split()[0]}
    notes = llama / "PKG-INFO" if llama else None
    if notes and notes.exists():
        (versions["llama-cpp-python"],) = re.findall(
            r"^Version: (.+)$", notes.read_text(), re.MULTILINE
        )
    for packages, python in {"torch": sys.executable, **pythons}.items():
        if python:
            command = [python, "-c", _ASK, *packages.split()]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            versions |= json.loads(done.stdout)
    return versions


def _stack(name: str, samples: Samples, nbytes: int) -> dict[str, object]:
    speeds = {
        what: _spread([count / seconds for seconds in samples.of(key)])
        for what, (key, count) in SPEEDS.items()
    }
    stack: dict[str, object] = {"name": name, "tokens_per_second": speeds}
    if "load_s" not in samples.rounds[0]:  # measured by the peer itself
        return stack
    return stack | {
        "load_ms": _spread([1e3 * seconds for seconds in samples.of("load_s")]),
        "start_to_first_token_s": _spread(samples.of("start_s")),
        "resident_mb": {
            moment: [
                _memory(samples, f"{key}_anon", f"{key}_shmem"),
                _memory(samples, f"{key}_file"),
            ]
            for moment, key in MOMENTS.items()
        },
        "peak_mb": _memory(samples, "peak_nbytes"),
        "file_mb": round(nbytes / 1e6, 1),
    }


def _spread(values: Sequence[float]) -> list[float]:
    """Return the median, the least and the most, with four digits."""
    three = (statistics.median(values), min(values), max(values))
    return [float(f"{value:.4g}") for value in three]


def _memory(samples: Samples, *keys: str) -> float:
    return round(statistics.median(samples.of(*keys)) / 1e6, 1)


def _short(value: str | float) -> str | float:
    """Return a number with four digits, anything else as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
