"""`kvc split`: move a bundle's data to a file of its own, which bundles can share."""

from pathlib import Path

import click

from kvc.tools.data_folders import data_folders_option


@click.command()
@click.argument("bundle", metavar="MODEL.kvc")
@click.option(
    "-o",
    "--output",
    metavar="OUT.kvc",
    help="The small bundle.  [default: MODEL.kvc, which is replaced]",
)
@data_folders_option
def split(bundle: str, output: str | None, data_folders: tuple[str, ...]) -> None:
    """Write MODEL.kvc as a small bundle and a data file NAME-DIGEST.kvd beside it.

    The data file is named by its content and never written over: bundles of equal
    weights share one. The bundle takes its place only when the data file is there.
    """
    from kvc.schema.container import split_bundle
    from kvc.tools.outputs import check_output
    from kvc.tools.progress import Stages
    from kvc.tools.text import escape, size

    path = check_output(bundle if output is None else output)
    with Stages(quiet=False) as stages:
        saved = split_bundle(bundle, path, data_folders, stages.show)
    line = f"{escape(str(path))}: {size(saved.nbytes)}"
    if saved.data_path is None:
        click.echo(f"{line}, no data to move")
        return
    was_there = "" if saved.data_is_new else ", which was there already"
    name = escape(Path(saved.data_path).name)
    click.echo(f"{line}; its data: {name}, {size(saved.data_nbytes)}{was_there}")
