"""`kvc check`: whether this machine computes the same as the compiler's machine."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import CheckFailed, DigestMismatch, KvcError, NoCheck
from kvc.schema.text import escape, plural
from kvc.tools.options import Loading, loading_options, open_program
from kvc.tools.printing import end_in_trouble, report_text

if TYPE_CHECKING:
    from kvc.tools.checks.expected import Checked


@click.command("check")
@click.argument("bundle", metavar="BUNDLE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@loading_options
def check_command(bundle: str, as_json: bool, loading: Loading) -> None:
    """Check that BUNDLE computes the same here as on the machine that compiled it.

    For a bundle that kvc compile --check made, which stores in it the results of sample
    calls: a prompt as a whole and in pieces, single tokens, sessions that take turns,
    and a session after going back. kvc check makes the same calls here, and compares
    their results and the contents of the caches with the stored ones. It also compares
    all stored weights with their digests.

    Ends with exit code 0 if all agree; 1 if a result differs or a weight is damaged,
    which the message names, also with --json; and 2 if BUNDLE cannot be checked: it has
    no results to compare with, or cannot be read or run here.

    Example: kvc check model.kvc
    """
    try:
        found = _compared(bundle, loading)
    except (CheckFailed, DigestMismatch) as error:
        if as_json:
            click.echo(report_text("check", _failed(bundle, error)))
        raise
    except KvcError as error:
        end_in_trouble(error)
    if as_json:
        click.echo(report_text("check", {"path": bundle, "ok": True, **asdict(found)}))
    else:
        click.echo(f"{escape(bundle)}: {_line(found)}")


def _compared(bundle: str, loading: Loading) -> "Checked":
    """Make the sample calls, and compare their results with those in the bundle.

    Raises:
        CheckFailed: a result differs from the result on the compiling machine.
        DigestMismatch: a weight is damaged.
        KvcError: the bundle cannot be loaded or run, or has no results.
    """
    from kvc.tools.checks.calls import sample_results
    from kvc.tools.checks.expected import FILE, check_stored, compare, expected_of

    with open_program(bundle, loading) as program:
        if FILE not in program.files:
            reason = f"{bundle} has no results to compare with; compile it with --check"
            raise NoCheck(reason=reason)
        expected = expected_of(program.files[FILE], program.provenance.recipe)
        check_stored(bundle, loading.data_folders)
        return compare(expected, sample_results(program, expected.calls))


def _failed(path: str, error: CheckFailed | DigestMismatch) -> dict[str, object]:
    if isinstance(error, DigestMismatch):
        said = (error.what, "bytes of the digest that the file states", "other bytes")
    else:
        said = (error.result, error.expected, error.found)
    told = dict(zip(("result", "expected", "found"), said, strict=True))
    return {"path": path, "ok": False, **told}


def _line(found: "Checked") -> str:
    told = f"computes here what it did when compiled: {plural(found.results, 'result')}"
    if not found.largest:
        return f"{told}, equal to the last digit kept"
    name, allowed = escape(found.name), f"{found.allowed:.1g}"
    share = f"{found.largest:.1g} of its size ({allowed} is allowed)"
    return f"{told}; the largest difference is {share}, in {name}"
