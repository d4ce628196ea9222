"""Processor time of model A's calls with one thread, for machines that are not quiet.

    python tests/benchmarks/processor_time.py BUNDLE [ROUNDS]

Each round is a process of its own, and prints one line: seconds of the process until
the first token after a prompt of 128, all its threads together; then milliseconds of
the thread for a decode step at 128, the median of 12, and for a prompt of 128, the
lesser of two.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np


def milliseconds(call: Callable[[], object]) -> float:
    """Return the processor time of the thread in a call."""
    begin = time.thread_time()
    call()
    return (time.thread_time() - begin) * 1e3


def measure(path: str) -> None:
    """Measure a bundle in this process."""
    from kvc.runtime import load

    prompt = np.random.default_rng(0).integers(0, 49152, (1, 128))
    token = np.array([[7]])
    with load(path, reference=False, threads=1) as program:
        session = program.session()
        session.prefill(prompt)
        first = time.process_time()
        steps = [milliseconds(lambda: session.decode(token)) for _ in range(14)]
        prefills = []
        for _ in range(2):
            session.reset()
            prefills.append(milliseconds(lambda: session.prefill(prompt)))
    step = statistics.median(steps[2:])
    line = f"first token {first:.2f} s, decode {step:.1f} ms, "
    sys.stdout.write(f"{line}prefill {min(prefills):.0f} ms\n")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        for _ in range(int(sys.argv[2])):
            subprocess.run([sys.executable, __file__, sys.argv[1]], check=True)
    else:
        measure(sys.argv[1])
