"""Run cases in child processes, so that a crash or hang ends only one case.

In: a function that runs some cases and returns an answer to each, as JSON values. Out:
the answers, in order; `Ended` for a case during which the process ended.
"""

import json
import mmap
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TryCases = Callable[[range], Sequence[object]]


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code of a process that ended before it answered."""

    code: int

    @property
    def too_long(self) -> bool:
        """Tell whether the process was ended for too much processor time."""
        return self.code == -signal.SIGPROF


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float  # of a processor, for one case; a tenth more for each tried with it
    nbytes: int  # of address space, beside what there is before
    together: int = 1  # how many cases are tried at once


def answers(
    try_cases: TryCases, cases: range, limits: Limits
) -> Iterator[tuple[int, object | Ended]]:
    """Yield for each case its number, and its answer or the end of its process.

    After a process has ended early, a new process continues with the next cases. If the
    ended process ran several cases together, they are first run again, one by one.
    """
    next_case = cases.start
    while next_case < cases.stop:
        left = range(next_case, cases.stop)
        for some in _in_a_process(try_cases, left, limits):
            if isinstance(some, Ended):
                tried = left[next_case - left.start :][: limits.together]
                if len(tried) > 1:
                    yield from answers(try_cases, tried, _one_by_one(limits))
                else:
                    yield next_case, some
                next_case += len(tried)
            else:
                for answer in some:
                    yield next_case, answer
                    next_case += 1


def _one_by_one(limits: Limits) -> Limits:
    return Limits(limits.seconds, limits.nbytes)


def _in_a_process(try_cases, cases, limits) -> Iterator[list[object] | Ended]:
    """Run cases in one process, and yield lists of answers to cases that run together.

    If the process ends early, yield `Ended` last.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _child(try_cases, cases, limits, writing)
    os.close(writing)
    left = len(cases)
    with os.fdopen(reading) as lines:
        for line in lines:
            made = json.loads(line)
            left -= len(made)
            yield made
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if left:
        yield Ended(code)


def _child(try_cases: TryCases, cases: range, limits: Limits, answers_to: int) -> None:
    """Run cases in this child process, and write their answers; never return.

    The answers to cases that run together are one line of JSON.
    """
    code = 1
    try:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (now + limits.nbytes,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        for first in range(0, len(cases), limits.together):
            some = cases[first : first + limits.together]
            seconds = limits.seconds * (9 + len(some)) / 10
            signal.setitimer(signal.ITIMER_PROF, seconds)
            made = try_cases(some)
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(answers_to, json.dumps(list(made)).encode() + b"\n")
        code = 0
    except BaseException:  # nobody else will tell
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
