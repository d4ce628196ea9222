"""Forks, measured: time and memory against copying, and many sessions of one prefix.

`python tests/benchmarks/forks.py [--layers 30] [--tokens 4000] [--sessions 300]`. The
model is the cache half of model A, as in `states.py`: 30 layers of a key and a value
cache [1, 3, capacity, 64]. `copy` is what a fork does where pages cannot be shared.
Memory is pages that a session alone has, and blocks of what sessions have in common.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from states import compile_linear, fill, show

from kvc.runtime import Program, Session, load
from kvc.runtime.memory import mapping

CAPACITY = 8192


def times_ms(work: Callable[[], Session], repeats: int) -> tuple[float, float]:
    """Return the median and the least time; what is opened is closed in between."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        session = work()
        times.append((time.perf_counter() - start) * 1e3)
        session.close()
    return statistics.median(times), min(times)


def memory_mb(sessions: Iterable[Session]) -> float:
    """Return the memory of sessions, what they have in common once."""
    own, frozen = 0, {}
    for session in sessions:
        found = session.residency()
        assert found.own is not None, "Linux shows the page table"
        own += found.own
        frozen.update(found.frozen)
    return (own + sum(frozen.values())) / 1e6


def measure_time(program: Program, tokens: int, repeats: int) -> None:
    """Time the first fork, later ones, and copies."""
    show("", "median ms", "least ms")
    firsts = []
    for _ in range(3):
        with program.session(capacity=CAPACITY) as session:
            fill(session, tokens)
            start = time.perf_counter()
            session.fork().close()
            firsts.append((time.perf_counter() - start) * 1e3)
    _show_times("first fork", statistics.median(firsts), min(firsts))
    with program.session(capacity=CAPACITY) as session:
        fill(session, tokens)
        session.fork().close()
        _show_times("fork", *times_ms(session.fork, repeats))
        with session.fork() as child:
            _show_times("fork of a fork", *times_ms(child.fork, repeats))
            fill(child, 1)
            _show_times("after a token", *times_ms(child.fork, repeats))
        real, mapping.is_available = mapping.is_available, lambda: False
        try:
            _show_times("copy", *times_ms(session.fork, max(3, repeats // 10)))
        finally:
            mapping.is_available = real


def _show_times(name: str, median: float, least: float) -> None:
    show(name, f"{median:.2f}", f"{least:.2f}")


def measure_memory(program: Program, tokens: int) -> None:
    """Say what two forks cost that go their own ways."""
    show("each went on by", "MB of three", "MB of prefix")
    for more in (0, 1, 64, 512):
        with program.session(capacity=CAPACITY) as parent:
            fill(parent, tokens)
            prefix = memory_mb([parent])
            with parent.fork() as one, parent.fork() as other:
                for session in (one, other):
                    fill(session, more)
                show(more, f"{memory_mb([parent, one, other]):.1f}", f"{prefix:.1f}")


def measure_many(program: Program, tokens: int, count: int) -> None:
    """Open many sessions of one prefix, each with a token of its own."""
    show("sessions", "MB", "median ms", "maps")
    with program.session(capacity=CAPACITY) as parent:
        fill(parent, tokens)
        children: list[Session] = []
        times = []
        for number in range(1, count + 1):
            start = time.perf_counter()
            children.append(parent.fork())
            times.append((time.perf_counter() - start) * 1e3)
            fill(children[-1], 1)
            if number in (1, 10, 100, count):
                _show_many(parent, children, times)
        for child in children:
            child.close()


def _show_many(
    parent: Session, children: Sequence[Session], times: Sequence[float]
) -> None:
    maps = sum(child.residency().maps for child in children)
    memory = memory_mb([parent, *children])
    show(len(children), f"{memory:.1f}", f"{statistics.median(times):.2f}", maps)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--sessions", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "linear.kvc"
        compile_linear(options.layers, path)
        with load(path) as program:
            measure_time(program, options.tokens, options.repeats)
            measure_memory(program, options.tokens)
            measure_many(program, options.tokens, options.sessions)


if __name__ == "__main__":
    main()
