"""What choosing a token costs, and what `generate` adds to a call of a method.

    python tests/benchmarks/sampling.py

prints microseconds a token, the least of many runs: over 49,152 logits for each way to
choose, and over a model that does next to nothing for the loop around it.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvc.runtime import GenerationSettings, generate, load
from kvc.runtime.generation.processors import processors_of
from kvc.runtime.generation.sampling import Chooser

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

VOCAB = 49152
WAYS: tuple[dict[str, float], ...] = (
    {},
    {"repetition_penalty": 1.1},
    {"temperature": 0.7},
    {"temperature": 0.7, "top_k": 50},
    {"temperature": 0.7, "top_k": 50, "top_p": 0.9},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "min_p": 0.05},
    {"temperature": 2.0, "top_p": 0.99},
)


def least(run: Callable[[], object], times: int) -> float:
    """The seconds of the quickest run."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


def choices() -> None:
    logits = np.random.default_rng(0).normal(0, 3, VOCAB).astype(np.float32)
    for way in WAYS:
        settings = GenerationSettings(**way)  # type: ignore[arg-type]
        chooser = Chooser(settings, range(0, 2000, 2), 0, processors_of(settings, 1, 1))
        took = least(lambda chooser=chooser: chooser.choose(logits), 300)
        print(f"{took * 1e6:8.0f} us  {way or 'the likeliest'}")


def loop() -> None:
    from counting_model import counting_program
    from hand_built import write_bundle

    with tempfile.TemporaryDirectory() as folder:
        path = write_bundle(Path(folder) / "g.kvc", counting_program(capacity=None))
        with load(path) as program, program.session() as session:
            token = np.zeros((1, 1), np.int64)
            call = least(lambda: session.step(token), 2000)
            tokens = generate(session, [0])
            whole = least(lambda: next(tokens), 2000)
    print(f"{call * 1e6:8.0f} us  a call that does next to nothing")
    print(f"{(whole - call) * 1e6:8.0f} us  more for a token of generate around it")


if __name__ == "__main__":
    choices()
    loop()
