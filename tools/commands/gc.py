"""`kvc gc`: remove data files that no bundle in their folder needs any more."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import KvcError
from kvc.schema.text import escape, plural, size
from kvc.tools.printing import BAD, end_in_trouble, report_text

if TYPE_CHECKING:
    from kvc.schema.container import Collected


@click.command("gc")
@click.argument("folder", metavar="FOLDER")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def collect(folder: str, dry_run: bool, as_json: bool) -> None:
    """Remove the data files in FOLDER that no bundle there needs.

    Also removes temporary files left by a crash. Bundles in other folders, which may
    use data files here by --data-folder, are not seen; put a link to them into FOLDER.
    Data files that are being written are kept. If a bundle in FOLDER cannot be read,
    nothing is removed.

    Ends with exit code 0 if all unneeded files are removed, 1 if one of them cannot be
    removed, 2 if FOLDER or a bundle in it cannot be read.

    Example: kvc gc ./bundles
    """
    from kvc.schema.container import collect_garbage

    try:
        done = collect_garbage(folder, dry_run)
    except KvcError as error:
        end_in_trouble(error)
    if as_json:
        facts = {
            "folder": folder,
            "dry_run": dry_run,
            "nbytes": sum(one.nbytes for one in done.removed),
        }
        click.echo(report_text("gc", facts | asdict(done)))
    else:
        click.echo("\n".join(_lines(folder, dry_run, done)))
    if done.failed:
        raise click.exceptions.Exit(BAD)


def _lines(folder: str, dry_run: bool, done: "Collected") -> list[str]:
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {escape(g.name)} ({size(g.nbytes)})" for g in done.removed]
    lines += [f"left {escape(g.name)}: somebody is using it" for g in done.held]
    lines += [f"left {escape(f.name)}: {escape(f.reason)}" for f in done.failed]
    total = size(sum(one.nbytes for one in done.removed))
    count = plural(len(done.removed), "file")
    return [*lines, f"{escape(folder)}: {verb} {count}, {total}"]
