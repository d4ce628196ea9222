"""Record calls of a bundle for `kvc profile`, and add up where their time goes.

In: an open program and a test. Out: spans of each call; the time in a call of each
operator, module or source line; a trace that Chrome and Perfetto open.
"""

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np

from kvc.runtime import Program, Session, Span, record
from kvc.schema.text import families
from kvc.tools.bench.measuring import feeder_at, random_prompts
from kvc.tools.bench.method_tests import MethodTest, held_sizes
from kvc.tools.bench.plan import SpeedTest
from kvc.tools.checks.calls import arguments_at
from kvc.tools.reports.instructions import line_of, module_of

_WARM_NS: Final = 50_000_000
_WARM_CALLS: Final = 50
OUTSIDE: Final = "outside the steps"
_MADE_BY: Final = {"otherData": {"made by": "kvc profile"}}
# The beginning of every trace's JSON, by which a trace is recognized.
TRACE_START: Final = json.dumps(_MADE_BY).removesuffix("}").encode()


@dataclass(frozen=True, slots=True)
class Call:
    """A call, or the calls that read a prompt.

    Attributes:
        began, ended: times of start and end in nanoseconds.
        spans: spans of the call's steps; empty if the call was not recorded.
    """

    began: int
    ended: int
    spans: tuple[Span, ...] = ()

    @property
    def milliseconds(self) -> float:
        """Return the duration of the call in milliseconds."""
        return (self.ended - self.began) / 1e6


@dataclass(frozen=True, slots=True)
class Profile:
    """The calls of a test, made both without and with recording.

    Attributes:
        test: the test, of tokens or of a method.
        plain: calls of the test without recording.
        calls: the same calls with recording.
    """

    test: SpeedTest | MethodTest
    plain: tuple[Call, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """The time that steps of one kind take in a call.

    Attributes:
        what: name of the operator, module or line; or `OUTSIDE` for arguments, sizes,
            results and the checks of the session.
        backends: backends that run the steps, "" for the runtime itself.
        count: number of these steps in a call.
        milliseconds: mean milliseconds in a call, without the steps nested in these
            steps.
        share: share of the whole call, from 0 to 1.
    """

    what: str
    backends: tuple[str, ...]
    count: float
    milliseconds: float
    share: float


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """The time that the calls of a test take, in all and by kind of step.

    Attributes:
        test: name of the test: in the form of llama-bench, or the method and sizes.
        method: the method that is called with made-up arguments, "" for a test of
            tokens.
        sizes: sizes of those arguments by name; empty for a test of tokens.
        prompt: number of tokens of the prompt, 0 for any other test.
        steps: number of tokens made one by one, 0 for any other test.
        depth: number of tokens in each row before the test.
        calls: number of recorded calls.
        recorded_ms, unrecorded_ms: median milliseconds of a call with and without
            recording.
        overhead: time that recording adds, as a share of the call; the median over
            pairs of a recorded and an unrecorded call.
        rows: time of the steps of a recorded call, by kind, the longest first.
    """

    test: str
    method: str
    sizes: Mapping[str, int]
    prompt: int
    steps: int
    depth: int
    calls: int
    recorded_ms: float
    unrecorded_ms: float
    overhead: float
    rows: tuple[Row, ...]


def profile(program: Program, test: SpeedTest, repeats: int) -> Profile:
    """Run a test once untimed, then each of its calls both recorded and unrecorded.

    In alternate pairs the recorded call comes first, so that a machine that becomes
    slower affects recorded and unrecorded calls alike.

    Args:
        program: a program with methods of the roles prefill and decode.
        test: the test to run; each decoding step is a call.
        repeats: how often a prompt is read.

    Raises:
        KvcError: as `load`, `Program.session` and `generate`.
    """
    with program.session() as session:
        _run(session, SpeedTest(test.prompt, min(test.steps, 1), test.depth), 0)
        run = partial(_run, session, test)
        return _profiled(test, run, repeats if test.prompt else 1)


def profile_method(program: Program, test: MethodTest, repeats: int) -> Profile:
    """Call a method untimed, then `repeats` times both recorded and unrecorded.

    The pairs of calls alternate as those of `profile`.

    Raises:
        KvcError: as `load`, `Program.session` and `Session.call`.
    """
    with _calling(program, test) as run:
        return _profiled(test, run, repeats)


def time_method(program: Program, test: MethodTest, count: int) -> list[Call]:
    """Call a method untimed, then `count` times; return these calls.

    Raises:
        KvcError: as `load`, `Program.session` and `Session.call`.
    """
    with _calling(program, test) as run:
        return [call for _ in range(count) for call in run(0)]


@contextmanager
def _calling(
    program: Program, test: MethodTest
) -> Iterator[Callable[[int], list[Call]]]:
    """Return a function that calls a method, which is warm.

    Before each call, the session is reset, untimed. The arguments are random numbers,
    the same in every process. The first calls of a method are slower, by up to half of
    a call of 1 ms; so calls are made for 50 ms before, but 50 at most.
    """
    held = {name: test.sizes[name] for name in held_sizes(program) & test.sizes.keys()}
    method = program.methods[test.method]
    given = arguments_at(method, test.sizes, np.random.default_rng(0))
    with program.session(held) as session:

        def run(turn: int) -> list[Call]:
            session.reset()
            return [_ways(turn)(partial(session.call, test.method, **given))]

        began = time.perf_counter_ns()
        for _ in range(_WARM_CALLS):
            run(0)
            if time.perf_counter_ns() - began > _WARM_NS:
                break
        yield run


def _profiled(
    test: SpeedTest | MethodTest, run: Callable[[int], list[Call]], turns: int
) -> Profile:
    """Run a test in so many turns, each call both recorded and unrecorded."""
    pairs = [pair for turn in range(turns) for pair in _pairs(run, turn)]
    plain, calls = zip(*pairs, strict=True)
    return Profile(test, plain, calls)


def _pairs(run: Callable[[int], list[Call]], turn: int) -> Iterator[tuple[Call, Call]]:
    """Yield each call of a test as a pair: unrecorded, recorded."""
    runs = run(turn), run(turn + 1)
    for place, (first, second) in enumerate(zip(*runs, strict=True), turn):
        yield (second, first) if place % 2 else (first, second)


def _run(session: Session, test: SpeedTest, turn: int) -> list[Call]:
    """Make a test's calls; record every second call, the first if `turn` is odd."""
    feeder = feeder_at(session, 1, test.depth)
    tokens = random_prompts(feeder, 1, test.tokens)
    feeder.check_prompts(tokens)
    if test.prompt:
        return [_ways(turn)(lambda: feeder.feed_prompts(tokens))]
    return [
        _ways(place)(lambda token=token: feeder.feed([token]))  # type: ignore[misc]  # a default binds it
        for place, token in enumerate(tokens[0], turn)
    ]


def _ways(place: int) -> Callable[[Callable[[], object]], Call]:
    return _recorded if place % 2 else _plainly


def _plainly(action: Callable[[], object]) -> Call:
    began = time.perf_counter_ns()
    action()
    return Call(began, time.perf_counter_ns())


def _recorded(action: Callable[[], object]) -> Call:
    began = time.perf_counter_ns()
    with record() as recorder:
        action()
        ended = time.perf_counter_ns()
    return Call(began, ended, recorder.spans)


def by_operator(span: Span) -> str:
    """Return the operator of a step."""
    return span.op


def by_module(span: Span) -> str:
    """Return the module of a step, or a stand-in if the program names no modules."""
    return module_of(span.source) or "(no module)"


def by_line(span: Span) -> str:
    """Return the user's line of a step."""
    return line_of(span.source) or "(no source)"


GROUPINGS: Final[Mapping[str, Callable[[Span], str]]] = MappingProxyType(
    {"operator": by_operator, "module": by_module, "line": by_line}
)


def rows_of(calls: Sequence[Call], by: Callable[[Span], str]) -> list[Row]:
    """Return the time that steps of each kind take in a call, the longest first.

    Modules whose names differ only in numbers are one row, as `layers.{0..29}.attn`.

    Args:
        calls: one or more recorded calls.
        by: function that returns the kind of a step.
    """
    whole = sum(call.milliseconds for call in calls)
    times: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    backends: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for call in calls:
        for span, own in own_times(call.spans):
            kind = by(span)
            times[kind] += own / 1e6
            counts[kind] += 1
            backends[kind][span.backend] = None
    folded = families(times, str, lambda kind: tuple(backends[kind]))
    found = [
        Row(
            what=pattern,
            backends=tuple(backends[kinds[0]]),
            count=sum(counts[kind] for kind in kinds) / len(calls),
            milliseconds=sum(times[kind] for kind in kinds) / len(calls),
            share=sum(times[kind] for kind in kinds) / whole,
        )
        for pattern, kinds in folded
    ]
    rest = whole - sum(times.values())
    found.append(Row(OUTSIDE, (), 1, rest / len(calls), rest / whole))
    return sorted(found, key=lambda row: -row.milliseconds)


def describe_profile(found: Profile, by: Callable[[Span], str]) -> ProfileReport:
    """Return the report on a test, with one row for each kind of step."""
    called = found.test if isinstance(found.test, MethodTest) else MethodTest("", {})
    tokens = found.test if isinstance(found.test, SpeedTest) else SpeedTest(0, 0, 0)
    return ProfileReport(
        test=found.test.name,
        method=called.method,
        sizes=called.sizes,
        prompt=tokens.prompt,
        steps=tokens.steps,
        depth=tokens.depth,
        calls=len(found.calls),
        recorded_ms=median_ms(found.calls),
        unrecorded_ms=median_ms(found.plain),
        overhead=overhead_of(found),
        rows=tuple(rows_of(found.calls, by)),
    )


def own_times(spans: Iterable[Span]) -> list[tuple[Span, int]]:
    """Return each span with its nanoseconds, without those of the spans inside it.

    Args:
        spans: spans in the order in which they ended, so that inner spans come before
            outer ones.
    """
    found: list[tuple[Span, int]] = []
    open_spans: list[tuple[int, int]] = []  # (began, whole time) of outermost spans
    for span in spans:
        inside = 0
        while open_spans and open_spans[-1][0] >= span.began:
            inside += open_spans.pop()[1]
        whole = span.ended - span.began
        open_spans.append((span.began, whole))
        found.append((span, whole - inside))
    return found


def mean_ms(calls: Sequence[Call]) -> float:
    """Return the mean duration of calls in milliseconds."""
    return statistics.fmean(call.milliseconds for call in calls)


def median_ms(calls: Sequence[Call]) -> float:
    """Return the median duration of calls in milliseconds."""
    return statistics.median(call.milliseconds for call in calls)


def overhead_of(found: Profile) -> float:
    """Return the time that recording adds: the median over pairs, as a share."""
    pairs = zip(found.calls, found.plain, strict=True)
    return (
        statistics.median(
            recorded.milliseconds / plain.milliseconds for recorded, plain in pairs
        )
        - 1
    )


def trace_of(profiles: Sequence[Profile]) -> dict[str, object]:
    """Return all recorded spans in the Trace Event Format of Chrome.

    https://ui.perfetto.dev and chrome://tracing open it; times are in microseconds.
    Its JSON begins with `TRACE_START`.
    """
    events: list[dict[str, object]] = []
    for found in profiles:
        for number, call in enumerate(found.calls):
            name = f"{found.test.name}, call {number}"
            events.append(_event(name, "call", call.began, call.ended, {}))
            for span in call.spans:
                told = {"method": span.method, "source": span.source}
                kind = span.backend or "runtime"
                events.append(_event(span.op, kind, span.began, span.ended, told))
    return {**_MADE_BY, "traceEvents": events, "displayTimeUnit": "ms"}


def _event(
    name: str, kind: str, began: int, ended: int, told: Mapping[str, str]
) -> dict[str, object]:
    times = {"ts": began / 1e3, "dur": (ended - began) / 1e3}
    place = {"ph": "X", "pid": 1, "tid": 1}
    return {"name": name, "cat": kind, **place, **times, "args": told}
