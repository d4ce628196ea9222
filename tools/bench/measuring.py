"""The process that `kvc bench` starts for each bundle and round.

`python -m kvc.tools.bench.measuring PLAN`, the plan as JSON. Prints figures as JSON. An
error is a message on stderr and exit code 1.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from kvc.runtime import Program, Session
from kvc.runtime.threads import settle_threads
from kvc.schema.errors import KvcError
from kvc.schema.text import escape
from kvc.tools.bench.feeding import feeder_at, random_prompts
from kvc.tools.bench.plan import Figures, Memory, Plan, SpeedTest, plan_of
from kvc.tools.loading import open_program

_STATUS: Final = Path("/proc/self/status")


def measure(plan: Plan) -> Figures:
    """Load a bundle, and run each test.

    Raises:
        KvcError: as `load`, `Program.session` and `generate`.
    """
    began = time.perf_counter()
    with open_program(plan.bundle, plan.loading) as program:
        load_s = time.perf_counter() - began
        with _open_session(program, plan.rows) as session:
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


def _open_session(program: Program, rows: int) -> Session:
    return program.session() if rows == 1 else program.session(batch=rows)


def _nbytes(program: Program) -> int:
    """Return the bytes of all data that the program may need, and of the bundle."""
    beside = sum(blob.nbytes for blob in program.residency().blobs if blob.file != "")
    return Path(program.path).stat().st_size + beside


def _time(session: Session, rows: int, test: SpeedTest) -> float:
    """Return the seconds of a test, after the same calls have run once, uncounted."""
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
    """Return what is resident, None where there is no /proc."""
    try:
        text = _STATUS.read_text()
    except OSError:
        return None
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def nbytes(name: str) -> int:
        return int(lines[name].split()[0]) * 1024

    return Memory(nbytes("RssAnon"), nbytes("RssFile"), nbytes("VmHWM"))


def main() -> None:
    """Measure as the argument says, and print."""
    try:
        figures = measure(plan_of(json.loads(sys.argv[1])))
    except KvcError as error:
        sys.exit(escape(str(error), keep="\n"))
    sys.stdout.write(json.dumps(asdict(figures)) + "\n")


if __name__ == "__main__":
    main()
