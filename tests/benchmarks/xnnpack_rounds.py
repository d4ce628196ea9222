"""Rounds of `xnnpack.py`: commands in turn, each in a new process.

In: commands that print one JSON line. Out: their figures, round by round. Before each,
its files are read, so that all find them in the page cache.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import data_process
from data_bench import Figures, Samples, in_process


def measure(
    commands: Mapping[str, Sequence[str]],
    paths: Mapping[str, Sequence[Path]],
    rounds: int,
    threads: int,
) -> dict[str, Samples]:
    """Run all commands in turn, round after round.

    Args:
        commands: by the name of a case.
        paths: of the files that a command reads; beside an .onnx, its whole folder.
        rounds: how often each runs.
        threads: what OpenMP is told; each command has been told itself.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once
    found: dict[str, list[Figures]] = {name: [] for name in commands}
    for turn in range(rounds):
        for name, command in commands.items():
            sys.stderr.write(f"\r\033[Kround {turn + 1}: {name}")
            sys.stderr.flush()
            for path in files_of(paths.get(name, ())):
                data_process.prepare_cache(str(path), cold=False)
            found[name].append(in_process(command_now(command)))
    sys.stderr.write("\r\033[K")
    return {name: Samples(tuple(figures)) for name, figures in found.items()}


def command_now(command: Sequence[str]) -> list[str]:
    """Return a command that is told when its process starts, if it measures that."""
    if "run" not in command:
        return list(command)
    return [*command, "--began", str(time.monotonic())]


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files that belong to paths."""
    files: list[Path] = []
    for path in paths:
        alone = path.suffix != ".onnx"
        files += [path] if alone else sorted(path.parent.iterdir())
    return files


def describe_machine() -> str:
    """Return the processor, what matters of its features, and the load on it."""
    text = Path("/proc/cpuinfo").read_text()
    model = text.split("model name")[1].split("\n")[0].strip("\t: ")
    features = [
        feature
        for feature in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8")
        if feature in text.split()
    ]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{model}, {os.cpu_count()} processors ({' '.join(features)}), load {load}"
