"""What each process of `xnnpack.py` measures, whichever stack it runs.

In: a stack, which loads a file and appends tokens at a position. Out: figures as one
JSON line. Needs the standard library and numpy alone, since every peer has a Python of
its own. Times are medians of the repeats in this process.

| figure | what |
| --- | --- |
| load_s | the load call, the libraries imported |
| start_s | from the start of the process to the logits of the first token |
| prefill_N_s | a prompt of N tokens into an empty cache, logits of the last |
| decode_N_s | one token after N and more |
| imported, loaded, first, ran | resident bytes, as `data_process` counts them |
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeAlias

import data_process
import numpy as np
import numpy.typing as npt

Shape = Mapping[str, int]


def _shape(**sizes: int) -> Shape:
    return MappingProxyType({**sizes, "capacity": 2048})


# SmolLM2-135M's; TinyLlama's, but for the output layer, which is the embedding.
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "a": _shape(vocab=49152, dim=576, layers=30, heads=9, kv_heads=3, ffn=1536),
        "b": _shape(vocab=32000, dim=2048, layers=22, heads=32, kv_heads=4, ffn=5632),
    }
)
PROMPTS = (128, 512)
DEPTHS = (128, 1024)
CHUNK = 512  # the longest that is appended at once

Ids: TypeAlias = npt.NDArray[np.int64]
Figures = dict[str, float]


def shape_of(path: str) -> Shape:
    """Return the shape of the model that a file is named after: `a-`, `b-`."""
    return SHAPES[Path(path).name.partition("-")[0]]


class Stack(Protocol):
    """What runs a model; libraries are imported when it is made."""

    def load(self, path: str) -> None:
        """Load a file, the figure `load_s`."""

    def step(self, ids: Ids, position: int) -> None:
        """Append tokens int64 [1, seq] at a position and compute the last's logits.

        Positions go on from call to call, or start again at 0.
        """


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what every stack is told."""
    parser.add_argument("path")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="of each prompt")
    parser.add_argument("--steps", type=int, default=32, help="of decoding, at a depth")
    parser.add_argument("--began", type=float, help="time.monotonic() at the start")


def measure_process(options: argparse.Namespace, make: Callable[[int], Stack]) -> None:
    """Measure a stack made with a number of threads, and print the figures."""
    stack = make(options.threads)
    figures = memory("imported")
    figures["load_s"] = clock(partial(stack.load, options.path))
    figures |= memory("loaded")
    stack.step(prompt(1), 0)
    if options.began is not None:
        figures["start_s"] = time.monotonic() - options.began
    figures |= memory("first")
    figures |= measure_speed(stack, options.repeats, options.steps)
    figures |= memory("ran")
    figures["peak_nbytes"] = peak_nbytes()
    sys.stdout.write(json.dumps(figures) + "\n")


def measure_speed(stack: Stack, repeats: int, steps: int) -> Figures:
    """Time prompts and steps; the first prompt of each length is not counted."""
    figures = {}
    for length in PROMPTS:
        append = partial(stack.step, prompt(length), 0)
        times = [clock(append) for _ in range(repeats + 1)]
        figures[f"prefill_{length}_s"] = statistics.median(times[1:])
    for depth in DEPTHS:
        figures[f"decode_{depth}_s"] = measure_decode(stack, depth, steps)
    return figures


def measure_decode(stack: Stack, depth: int, steps: int) -> float:
    """Return the median of the seconds of a step after `depth` tokens."""
    ids = prompt(depth + steps + 1)
    for start in range(0, depth, CHUNK):
        stack.step(ids[:, start : min(start + CHUNK, depth)], start)
    times = []
    for place in range(depth, depth + steps + 1):
        token = ids[:, place : place + 1].copy()
        times.append(clock(partial(stack.step, token, place)))
    return statistics.median(times[1:])


def prompt(length: int) -> Ids:
    """Return tokens, the same in each stack."""
    return np.random.default_rng(0).integers(0, 32000, (1, length), np.int64)


def clock(action: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def memory(when: str) -> Figures:
    """Return what is resident now, as figures named after a moment."""
    return {f"{when}_{kind}": n for kind, n in data_process.residency().items()}


def peak_nbytes() -> int:
    """Return the most that was ever resident."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
