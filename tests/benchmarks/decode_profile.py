"""Where the time of a call goes, by kind of step.

`python tests/benchmarks/decode_profile.py BUNDLE [--depth 128] [--method decode]`. The
loop over the steps of a frame is replaced from outside by one that reads the clock
around each; a reading costs 0.05 us or so. Delegates are told apart by how many nodes
they have. *Before* and *after the steps* are what the runtime does for a call beside
them: arguments, sizes, the session's checks; results. The same calls run first without
any clock inside. Microseconds are medians over the calls.
"""

import argparse
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from kvc.runtime import Session, load
from kvc.runtime.binding.executor import Frame, Progress
from kvc.schema.container import BundleFile
from kvc.schema.model import Instruction
from kvc.schema.ops import DELEGATE

CHUNK = 128  # tokens that are appended at once to fill a session
Ids = npt.NDArray[np.int64]
Name = Callable[[str, Instruction], str]  # of a method's instruction


class Profile:
    """The times of one call after another.

    Attributes:
        calls: seconds by kind of step, one dict for each call.
        steps: seconds of each step by its place, over all calls.
        count: steps of each kind in a call.
    """

    def __init__(self, name: Name) -> None:
        self._name = name
        self._nested = False
        self.calls: list[dict[str, float]] = []
        self.steps: defaultdict[str, list[float]] = defaultdict(list)
        self.count: Counter[str] = Counter()

    def run(self, frame: Frame, progress: Progress) -> None:
        """Run the steps of a frame; in place of `Frame._run`."""
        if self._nested:  # a delegate that is a frame itself
            for function, arguments in frame.steps:
                function(*arguments)
            return
        self._nested, clock = True, time.perf_counter
        marks = [clock()]
        for function, arguments in frame.steps:
            function(*arguments)
            marks.append(clock())
        self._nested = False
        self._note(frame, marks)

    def _note(self, frame: Frame, marks: Sequence[float]) -> None:
        call: defaultdict[str, float] = defaultdict(float)
        self.count.clear()
        for step, place in enumerate(frame.places):
            name = self._name(frame.method, frame.instructions[place])
            seconds = marks[step + 1] - marks[step]
            call[name] += seconds
            self.count[name] += 1
            self.steps[f"{name} at {place}"].append(seconds)
        self.calls.append({**call, "began": marks[0], "ended": marks[-1]})

    def timed(self, action: Callable[[], object]) -> None:
        """Run a call, and note what it takes beside its steps."""
        before = time.perf_counter()
        action()
        after = time.perf_counter()
        call = self.calls[-1]
        call["before the steps"] = call.pop("began") - before
        call["after the steps"] = after - call.pop("ended")
        call["the call"] = after - before


def namer(path: Path) -> Name:
    """Return what names the kind of an instruction of a bundle."""
    bundle = BundleFile.open(path)
    partitions: dict[tuple[str, object], str] = {}
    for partition in bundle.program.delegates:
        method = bundle.program.methods[partition.method]
        nodes = len(method.blocks[partition.block].graph.instructions)
        kind = f"{DELEGATE} {partition.backend}, {nodes} nodes"
        partitions[method.name, partition.block] = kind
    bundle.close()

    def name(method: str, instruction: Instruction) -> str:
        if instruction.op != DELEGATE:
            return instruction.op
        return partitions[method, instruction.arguments[0]]

    return name


def calls_of(options: argparse.Namespace, session: Session) -> Iterable[Ids]:
    """Yield the input of each call, the session being at the depth wanted."""
    random = np.random.default_rng(0)
    length = 1 if options.method == "decode" else options.length
    for turn in range(options.calls + 1):
        if turn == 0 or options.method != "decode":
            session.reset()
            for start in range(0, options.depth, CHUNK):
                width = min(CHUNK, options.depth - start)
                session.call("prefill", random.integers(0, 256, (1, width)))
        yield random.integers(0, 256, (1, length))


def plain_seconds(options: argparse.Namespace, session: Session) -> list[float]:
    """Return the seconds of each call, the first left out."""
    times = []
    for ids in calls_of(options, session):
        begin = time.perf_counter()
        session.call(options.method, ids)
        times.append(time.perf_counter() - begin)
    return times[1:]


def profiled(options: argparse.Namespace, session: Session, name: Name) -> Profile:
    """Return the times inside each call, the first left out."""
    profile = Profile(name)
    for turn, ids in enumerate(calls_of(options, session)):
        if turn == 1:
            profile.steps.clear()
        with patch.object(Frame, "_run", lambda f, p: profile.run(f, p)):
            profile.timed(partial(session.call, options.method, ids))
    profile.calls.pop(0)
    return profile


def show(profile: Profile, plain: Sequence[float], top: int) -> None:
    """Print the kinds of steps, the dearest first, and the dearest steps."""
    microseconds = {
        key: 1e6 * statistics.median(call[key] for call in profile.calls)
        for key in profile.calls[0]
    }
    whole = microseconds.pop("the call")
    line(f"a call, no clock inside: {1e6 * statistics.median(plain):.0f} us")
    line(f"a call, with the clock:  {whole:.0f} us")
    line(f"\n{'us':>10} {'%':>6} {'steps':>6} {'us each':>9}")
    for key, value in by_value(microseconds):
        count = profile.count.get(key, 0)
        each = f"{value / count:9.1f}" if count else " " * 9
        line(f"{value:10.1f} {100 * value / whole:6.1f} {count or '':>6} {each}  {key}")
    line(f"\nthe dearest {top} steps, us")
    steps = {key: 1e6 * statistics.median(t) for key, t in profile.steps.items()}
    for key, value in by_value(steps)[:top]:
        line(f"{value:10.1f}  {key}")


def by_value(figures: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return figures, the greatest first."""
    return sorted(figures.items(), key=lambda pair: -pair[1])


def line(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--method", default="decode", choices=("decode", "prefill"))
    parser.add_argument("--depth", type=int, default=128, help="tokens before")
    parser.add_argument("--length", type=int, default=128, help="of a prefill")
    parser.add_argument("--calls", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--reference", action=argparse.BooleanOptionalAction, help="as in `load`"
    )
    parser.add_argument("--top", type=int, default=8, help="dearest steps to list")
    options = parser.parse_args()
    name = namer(options.bundle)
    program = load(options.bundle, reference=options.reference, threads=options.threads)
    with program, program.session() as session:
        plain = plain_seconds(options, session)
        show(profiled(options, session, name), plain, options.top)


if __name__ == "__main__":
    main()
