"""The files of `kvc batch`: its input, its output, and the journal beside it.

In: paths as the user wrote them, what the user says of earlier runs. Out: open files,
of which none replaces what the user did not name.
"""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from kvc.schema.errors import BatchBegun

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kvc.serving.batch import Identity, Input, Journal


@dataclass(frozen=True, slots=True)
class Again:
    """What becomes of what an earlier run has left.

    Attributes:
        resume: its answers stay, if it was the same batch.
        anyway: those to lines that are the same stay, whatever else has changed.
        force: everything is done and written again.
    """

    resume: bool
    anyway: bool
    force: bool


def check_paths(prompts: str, output: str, again: Again) -> None:
    """Check where a batch is read and written, before anything is loaded.

    Raises:
        click.UsageError: options contradict each other, or the files are the same.
        BatchBegun: the output exists, or an earlier run has left a journal.
        CannotWrite: the output cannot be written.
    """
    from kvc.schema.container.temporary import AtomicFile

    if again.force and (again.resume or again.anyway):
        raise click.UsageError("--force begins anew, --resume goes on: give one")
    if output == "-":
        if again.resume or again.anyway:
            raise click.UsageError("--resume needs a file: -o OUT.jsonl")
        return
    AtomicFile(output)  # which checks the folder
    if _are_same(prompts, output):
        raise click.UsageError(f"{output} is the file of the prompts")
    journal = _journal_of(output)
    if again.force or (journal.exists() and (again.resume or again.anyway)):
        return
    if journal.exists():
        hint = "an earlier run has left it: --resume goes on, --force begins anew"
        raise BatchBegun(path=str(journal), hint=hint)
    if os.path.lexists(output) and not again.resume:
        raise BatchBegun(path=output, hint="--force replaces it")


def failed_before(output: str, again: Again, known: "Input | None") -> int | None:
    """Return how many rows of a finished batch have failed, None if it is not finished.

    Args:
        output: the path of the answers.
        again: what becomes of an earlier run.
        known: the prompts; None for stdin.

    Raises:
        BatchBegun: the output exists, and is not that of as many prompts.
    """
    if not again.resume or output == "-" or _journal_of(output).exists():
        return None
    if not os.path.lexists(output):
        return None
    lines = failed = 0
    with suppress(OSError, ValueError), Path(output).open("rb") as file:
        for line in file:
            found = json.loads(line)
            failed += isinstance(found, dict) and bool(found.get("error"))
            lines += 1
    if known is None or lines != known.count:
        hint = "it has no journal to go on from, and --force replaces it"
        raise BatchBegun(path=output, hint=hint)
    return failed


def _are_same(prompts: str, output: str) -> bool:
    """Tell whether two paths are of one file."""
    try:
        return prompts != "-" and Path(prompts).samefile(output)
    except OSError:  # one of them is missing
        return False


def _journal_of(output: str) -> Path:
    from kvc.serving.batch import SUFFIX

    return Path(output + SUFFIX)


@contextmanager
def opened_journal(
    output: str, identity: "Identity", again: Again
) -> Iterator["Journal"]:
    """Open the journal of an output; that of stdout has no name.

    Raises:
        KvcError: as `Journal.begin` and `Journal.resume`.
    """
    from kvc.serving.batch import Journal

    if output == "-":
        with (
            tempfile.TemporaryDirectory(prefix="kvc-") as folder,
            Journal.begin(Path(folder) / "journal", identity) as journal,
        ):
            yield journal
        return
    path = _journal_of(output)
    if (again.resume or again.anyway) and path.exists():
        opened = Journal.resume(path, identity, again.anyway)
    else:
        opened = Journal.begin(path, identity)
    with opened as journal:
        yield journal


def opened_input(prompts: str) -> "AbstractContextManager[BinaryIO]":
    """Open the prompts; - is stdin.

    Raises:
        click.ClickException: stdin is closed.
        FileProblem: the file cannot be read.
    """
    from kvc.serving.batch import opened

    if prompts != "-":
        return opened(prompts)
    if sys.stdin is None:
        raise click.ClickException("stdin is closed; give the name of a file")
    return nullcontext(sys.stdin.buffer)


def surveyed(prompts: str) -> "Input | None":
    """Return the digest and the number of lines of a file; None for stdin.

    Raises:
        FileProblem: the file cannot be read.
    """
    from kvc.serving.batch import survey

    # A pipe cannot be read twice.
    return survey(prompts) if Path(prompts).is_file() else None


def digest_of(settings: Mapping[str, object]) -> str:
    """Return what tells whether all rows have the same settings as before."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
