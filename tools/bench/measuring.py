"""The process that `kvc bench` starts for each bundle and round.

`python -m kvc.tools.bench.measuring PLAN`, the plan as JSON. Prints figures as JSON. An
error is a message on stderr and exit code 1. Sessions are fed with random tokens, the
same in every process.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvc.runtime import Program, Session
from kvc.runtime.generation.encoding import find_encode
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.threads import settle_threads
from kvc.schema.errors import BadSetting, KvcError
from kvc.schema.text import escape
from kvc.tools.bench.plan import Figures, Memory, Plan, SpeedTest, plan_of
from kvc.tools.options import open_program


def random_prompts(feeder: Feeder, rows: int, count: int) -> Sequence[Sequence[int]]:
    """Return `count` tokens for each row, the same in every process."""
    known = feeder.vocabulary if isinstance(feeder.vocabulary, int) else 1
    tokens: NDArray[np.int64] = np.random.default_rng(0).integers(
        0, known, (rows, count), np.int64
    )
    return tokens.tolist()  # type: ignore[no-any-return]  # numpy leaves it open


def feeder_at(session: Session, rows: int, depth: int) -> Feeder:
    """Return the feeder of a session after feeding `depth` random tokens to each row.

    Raises:
        BadSetting: the program has an encoder, which takes no random tokens.
        PromptTooLong: the session has no room for the tokens.
        KvcError: as `generate`.
    """
    if find_encode(session) is not None:
        expected = "one without an encoder: nothing says what to give that"
        raise BadSetting(name="bundle", expected=expected, found="one with an encoder")
    session.reset()
    feeder = Feeder(session, rows)
    if not depth:
        return feeder
    before = random_prompts(feeder, rows, depth)
    feeder.check_prompts(before)
    feeder.feed_prompts(before)
    return Feeder(session, rows)  # which counts from here


def measure(plan: Plan) -> Figures:
    """Load a bundle, and run each test.

    Raises:
        KvcError: as `load`, `Program.session` and `generate`.
    """
    began = time.perf_counter()
    with open_program(plan.bundle, plan.loading) as program:
        load_s = time.perf_counter() - began
        one, rows = plan.rows == 1, plan.rows
        with program.session() if one else program.session(batch=rows) as session:
            feeder = feeder_at(session, plan.rows, 0)
            feeder.feed_prompts(random_prompts(feeder, plan.rows, 1))
            first_token_s = time.monotonic() - plan.began
            seconds = tuple(_time(session, plan.rows, test) for test in plan.tests)
        return Figures(
            recipe=program.provenance.recipe,
            nbytes=_nbytes(program),
            threads=settle_threads(),
            load_s=load_s,
            first_token_s=first_token_s,
            seconds=seconds,
            memory=_memory(),
        )


def _nbytes(program: Program) -> int:
    """Return the bytes of the bundle and of all data that the program can need."""
    beside = sum(blob.nbytes for blob in program.residency().blobs if blob.file != "")
    return Path(program.path).stat().st_size + beside


def _time(session: Session, rows: int, test: SpeedTest) -> float:
    """Return the seconds of a test, after an untimed run of the same calls."""
    _run(session, rows, SpeedTest(test.prompt, min(test.steps, 1), 0))
    return _run(session, rows, test)


def _run(session: Session, rows: int, test: SpeedTest) -> float:
    feeder = feeder_at(session, rows, test.depth)
    tokens = random_prompts(feeder, rows, test.tokens)
    feeder.check_prompts(tokens)
    began = time.perf_counter()
    if test.prompt:
        feeder.feed_prompts(tokens)
    else:
        for step in zip(*tokens, strict=True):
            feeder.feed(step)
    return time.perf_counter() - began


def _memory() -> Memory | None:
    """Return the process's resident memory, None if there is no /proc."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return None
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def nbytes(name: str) -> int:
        return int(lines[name].split()[0]) * 1024

    return Memory(nbytes("RssAnon"), nbytes("RssFile"), nbytes("VmHWM"))


def main() -> None:
    """Run the plan in the command line's argument, and print the figures."""
    try:
        figures = measure(plan_of(json.loads(sys.argv[1])))
    except KvcError as error:
        sys.exit(escape(str(error), keep="\n"))
    sys.stdout.write(json.dumps(asdict(figures)) + "\n")


if __name__ == "__main__":
    main()
