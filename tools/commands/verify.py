"""`kvc verify`: check every byte of a bundle and its data files, or of a data file."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import (
    DataFileMissing,
    FileChanged,
    FileProblem,
    KvcError,
    UnsupportedVersion,
)
from kvc.schema.text import escape, plural, size
from kvc.tools.options import data_folders_option
from kvc.tools.printing import BAD, TROUBLE, report_text, tell

if TYPE_CHECKING:
    from kvc.schema.container import Verified

# Errors after which it is unknown whether a file is undamaged.
_NO_ANSWER = (DataFileMissing, FileChanged, FileProblem, UnsupportedVersion)


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A file without damage."""

    path: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of checking a file; for a damaged file only the problem.

    Attributes:
        ok: whether the file and its data files are undamaged; null if that is unknown,
            because a file cannot be read, is missing, or comes from another version of
            kvc.
        problem: description of the problem; null if there is none.
        code: code of the problem, for scripts.
        nbytes: bytes of all checked files.
        digest: digest of the program, or of the data file's index.
        files: checked files, the given file first.
        seconds: seconds that the check took.
    """

    path: str
    ok: bool | None
    problem: str | None
    code: str | None
    nbytes: int | None
    digest: str | None
    files: tuple[VerifiedFile, ...]
    seconds: float | None


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@data_folders_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(
    files: tuple[str, ...], data_folders: tuple[str, ...], as_json: bool
) -> None:
    """Check all of each FILE: structure, types, memory plan, bound lists, digests.

    FILE is a bundle (.kvc), which is checked together with its data files, or a data
    file (.kvd).

    Ends with exit code 0 if all files are undamaged, and 1 if one is damaged, with a
    message that says what is wrong and where. Ends with 2 if no file is known to be
    damaged but one cannot be judged: it or a data file of it is missing or cannot be
    read, or another version of kvc wrote it.

    Example: kvc verify model.kvc
    """
    reports = [_checked(file, data_folders, as_json) for file in files]
    if as_json:
        found = [asdict(report) for report in reports]
        click.echo(report_text("verify", {"files": found}))
    if any(report.ok is False for report in reports):
        raise click.exceptions.Exit(BAD)
    if any(report.ok is None for report in reports):
        raise click.exceptions.Exit(TROUBLE)


def _checked(file: str, data_folders: tuple[str, ...], as_json: bool) -> VerifyReport:
    """Check a file; print a problem, and without `as_json` also that there is none."""
    from kvc.schema.container import verify_file

    start = time.perf_counter()
    try:
        verified = verify_file(file, data_folders)
        unknown = _check_lists(file, verified)
    except KvcError as error:
        tell(error)
        ok = None if isinstance(error, _NO_ANSWER) else False
        return VerifyReport(file, ok, str(error), error.code, None, None, (), None)
    seconds = time.perf_counter() - start
    if not as_json:
        click.echo(_line(file, verified, seconds))
        if unknown:
            click.echo(f"  its bound lists were not compared: {unknown}")
    files = tuple(VerifiedFile(*each) for each in verified.files)
    nbytes = sum(each.nbytes for each in files)
    return VerifyReport(file, True, None, None, nbytes, verified.digest, files, seconds)


def _check_lists(file: str, verified: "Verified") -> str:
    """Compare bound lists with the graphs; return why this was impossible, or ""."""
    if verified.program is None or verified.program.bounds is None:
        return ""
    from kvc.runtime.bound_lists import check_lists

    return check_lists(file, verified.program)


def _line(path: str, verified: "Verified", seconds: float) -> str:
    nbytes, program = sum(nbytes for _, nbytes in verified.files), verified.program
    counts = [plural(verified.blobs, "blob"), size(nbytes)]
    if program is not None:
        methods, states = len(program.methods), len(program.states)
        counts = [plural(methods, "method"), plural(states, "state"), *counts]
        if program.bounds is not None:
            counts.insert(1, plural(len(program.bounds.lists), "bound list"))
    names = [path, *(Path(other).name for other, _ in verified.files[1:])]
    whole = " and ".join(map(escape, names))
    speed = f"{seconds:.2f} s, {size(round(nbytes / seconds))}/s"
    return f"{whole}: whole ({', '.join(counts)}; {speed})"
