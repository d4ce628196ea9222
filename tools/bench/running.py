"""Run the program of a peer, and say why it failed."""

import subprocess
from collections.abc import Sequence

import click

from kvc.schema.text import escape

Done = subprocess.CompletedProcess[str]


def output_of(command: Sequence[str]) -> Done:
    """Run a program to its end.

    Raises:
        ClickException: the system cannot run it: it is none of this machine.
    """
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="backslashreplace"
        )
    except OSError as error:
        reason = f"cannot run {escape(command[0])}: {error.strerror}"
        raise click.ClickException(reason) from error


def check_ended(done: Done) -> None:
    """Check that a program has not failed.

    Raises:
        ValueError: it has.
    """
    if done.returncode:
        raise ValueError(f"exit code {done.returncode}")


def failure(
    name: str, model: str, done: Done, error: Exception
) -> click.ClickException:
    """Return the error of a program that failed or printed something else.

    It has the last line that the program wrote to stderr, if there is one.
    """
    said = done.stderr.strip().splitlines()
    reason = escape(said[-1]) if said else repr(error)
    return click.ClickException(f"{name} fails on {escape(model)}: {reason}")
