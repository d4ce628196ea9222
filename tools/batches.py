"""Several prompts of `kvc generate` at once: a row of one session for each.

In: an open program, prompts, settings. Out: on stdout each prompt with its answer under
it, when all have ended; on stderr why they ended, and how fast it went.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kvc.tools.sampling import start_batch

if TYPE_CHECKING:
    from kvc.runtime import BatchGeneration, Program, Session
    from kvc.runtime.generation import Arguments

_WHY = {
    "stop": "ended by the model",
    "stop_string": "ended by a stop string",
    "length": "ended by a full cache",
    "max_tokens": "ended by the limit of tokens",
    None: "interrupted",
}


def open_rows(program: "Program", rows: int, capacity: int | None) -> "Session":
    """Open a session with a row for each prompt.

    Raises:
        click.ClickException: the bundle does not take as many prompts at once.
    """
    from kvc.runtime import BadSetting, UnknownName

    try:
        return program.session(capacity, batch=rows)
    except BadSetting as error:
        if error.name != "batch":
            raise
        most: object = error.expected
    except UnknownName:  # a program whose rows are not chosen has a fixed number
        session = program.session(capacity)
        most = count_rows(session)
        if most == rows:
            return session
        session.close()
    raise click.ClickException(
        f"there are {rows} prompts, and this bundle takes {most} at a time; "
        "kvc compile FOLDER --max-batch N makes one for more"
    )


def count_rows(session: "Session") -> int:
    """Return how many prompts a session runs at once."""
    from kvc.runtime import NoPosition

    try:
        return session.position.size
    except NoPosition:
        return 1


def print_batch(
    session: "Session", prompts: Sequence[str], settings: "Arguments", began: float
) -> None:
    """Run prompts to their ends and print what came; `began` is when all of it did.

    Raises:
        KvcError: as `kvc.runtime.generate`.
    """
    run = start_batch(session, prompts, settings)
    ready = time.perf_counter() - began
    try:
        for _ in run:
            pass
    finally:
        _print_texts(run, prompts)
        click.echo(_figures(run, ready), err=True)


def _print_texts(run: "BatchGeneration", prompts: Sequence[str]) -> None:
    out = sys.stdout.buffer
    run.close()
    for number, (prompt, text) in enumerate(zip(prompts, run.texts(), strict=True)):
        between = "\n" if number else ""
        out.write(f"{between}> {prompt}\n{text}\n".encode("utf-8", "replace"))
    out.flush()


def _figures(run: "BatchGeneration", ready: float) -> str:
    prefill, decode, first = run.prefill, run.decode, run.time_to_first_token
    waited = "" if first is None else f"first tokens {first:.2f} s later; "
    ends = Counter(_WHY[reason] for reason in run.reason)
    why = ", ".join(f"{count} {what}" for what, count in ends.items())
    return (
        f"ready after {ready:.1f} s; {waited}"
        f"prefill {prefill.tokens_per_second:.1f} tokens/s ({prefill.tokens} tokens), "
        f"decode {decode.tokens_per_second:.1f} tokens/s ({decode.tokens} tokens), "
        f"of all prompts together; {why}"
    )
