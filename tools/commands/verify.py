"""`kvc verify`: check every byte of a bundle and its data files, or of a data file."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvc.tools.data_folders import data_folders_option
from kvc.tools.endings import BAD, TROUBLE, tell
from kvc.tools.json_text import report_text

if TYPE_CHECKING:
    from kvc.schema.container import Verified


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A file that is whole."""

    path: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found whole.

    Attributes:
        ok: true; what is not whole ends with an error.
        nbytes: of all files.
        digest: of the program, or of the data file's index.
        files: the one that was given first.
        seconds: that it took.
    """

    path: str
    ok: bool
    nbytes: int
    digest: str
    files: tuple[VerifiedFile, ...]
    seconds: float


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@data_folders_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for one FILE.")
def verify(
    files: tuple[str, ...], data_folders: tuple[str, ...], as_json: bool
) -> None:
    """Check all of each FILE: structure, types, memory plan, digests.

    FILE is a bundle (.kvc), which is checked together with its data files, or a data
    file (.kvd).

    Ends with exit code 0 if all are whole, 1 if one is not, with a message that says
    what is wrong and where, 2 if none is wrong but one cannot be read.

    Example: kvc verify model.kvc
    """
    if as_json and len(files) > 1:
        raise click.UsageError("--json describes one file; give each to a call")
    ends = [_end(file, data_folders, as_json) for file in files]
    if any(ends):
        raise click.exceptions.Exit(min(filter(None, ends)))


def _end(file: str, data_folders: tuple[str, ...], as_json: bool) -> int:
    """Check a file, say what is found, and return the exit code for it."""
    from kvc.schema.container import verify_file
    from kvc.schema.errors import FileProblem, KvcError

    start = time.perf_counter()
    try:
        verified = verify_file(file, data_folders)
    except FileProblem as error:
        tell(error)
        return TROUBLE
    except KvcError as error:
        tell(error)
        return BAD
    seconds = time.perf_counter() - start
    if as_json:
        click.echo(report_text("verify", asdict(_report(file, verified, seconds))))
    else:
        click.echo(_line(file, verified, seconds))
    return 0


def _report(path: str, verified: "Verified", seconds: float) -> VerifyReport:
    files = tuple(VerifiedFile(*file) for file in verified.files)
    nbytes = sum(file.nbytes for file in files)
    return VerifyReport(path, True, nbytes, verified.digest, files, seconds)


def _line(path: str, verified: "Verified", seconds: float) -> str:
    from kvc.tools.text import escape, plural, size

    nbytes, program = sum(nbytes for _, nbytes in verified.files), verified.program
    counts = [plural(verified.blobs, "blob"), size(nbytes)]
    if program is not None:
        methods, states = len(program.methods), len(program.states)
        counts = [plural(methods, "method"), plural(states, "state"), *counts]
    others = [escape(Path(other).name) for other, _ in verified.files[1:]]
    whole = " and ".join([escape(path), *others])
    speed = f"{seconds:.2f} s, {size(round(nbytes / seconds))}/s"
    return f"{whole}: whole ({', '.join(counts)}; {speed})"
