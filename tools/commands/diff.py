"""`kvc diff`: what differs between two bundles.

Reads headers and programs, never a weight: digests tell whether two weights are equal.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import KvcError
from kvc.tools.options import data_folders_option
from kvc.tools.printing import BAD, end_in_trouble, report_text, show

if TYPE_CHECKING:
    from kvc.tools.reports.bundle import DumpReport
    from kvc.tools.reports.instructions import ListingReport


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--code", is_flag=True, help="Show how the instructions differ.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@data_folders_option
@click.option(
    "--backend",
    metavar="BACKEND",
    help="Of bundles for several recipes, the backend of those to compare.  [default: "
    "the first of each]",
)
def diff(
    old: str,
    new: str,
    code: bool,
    as_json: bool,
    data_folders: Sequence[str],
    backend: str | None,
) -> None:
    """Say what differs between the bundles OLD and NEW.

    Recipes and versions, methods, operators, code, states, weights (the same, changed,
    of another type, renamed, moved to another file), memory, sizes, metadata. Only
    what differs is printed.

    Ends with exit code 0 if both have the same content, 1 if not, 2 if one cannot be
    read.

    Example: kvc diff fp32.kvc q8.kvc
    """
    from kvc.tools.reports.differences import describe_differences
    from kvc.tools.reports.summaries import difference_lines

    try:
        (before, old_code), (after, new_code) = (
            _read(path, data_folders, backend) for path in (old, new)
        )
    except KvcError as error:
        end_in_trouble(error)
    report = describe_differences(before, after, old_code, new_code)
    if as_json:
        click.echo(report_text("diff", asdict(report)))
    else:
        show(difference_lines(report, code))
    if not report.equal:
        raise click.exceptions.Exit(BAD)


def _read(
    path: str, folders: Sequence[str], backend: str | None
) -> tuple["DumpReport", list["ListingReport"]]:
    from kvc.schema.container import BundleFile
    from kvc.tools.reports.bundle import body_of, describe_file
    from kvc.tools.reports.instructions import describe_listing

    with BundleFile.open(path) as file:
        program = body_of(file.program, backend)
        code = [describe_listing(program, method) for method in program.methods]
        return describe_file(file, folders, False, backend), code
