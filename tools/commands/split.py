"""`kvc split` and `kvc join`: move weights to a file that bundles share, and back."""

from pathlib import Path

import click

from kvc.schema.text import escape, size
from kvc.tools.options import data_folders_option


@click.command()
@click.argument("bundle", metavar="MODEL.kvc")
@click.option(
    "-o",
    "--output",
    metavar="OUT.kvc",
    help="The bundle without weights.  [default: replace MODEL.kvc]",
)
@data_folders_option
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
def split(
    bundle: str, output: str | None, data_folders: tuple[str, ...], quiet: bool
) -> None:
    """Move the weights of MODEL.kvc into a data file.

    The data file is NAME-DIGEST.kvd in the bundle's folder. DIGEST is that of its
    content, and it is never overwritten. The bundle is replaced only once the data file
    is complete.

    Example: kvc split model.kvc
    """
    from kvc.schema.container import split_bundle
    from kvc.tools.outputs import check_bundle_output
    from kvc.tools.progress import Stages

    path = Path(bundle) if output is None else check_bundle_output(output)
    with Stages(quiet=quiet) as stages:
        saved = split_bundle(bundle, path, data_folders, stages.show)
    line = f"{escape(str(path))}: {size(saved.nbytes)}"
    if saved.data_path is None:
        line += ", no data to move"
    else:
        was_there = "" if saved.data_is_new else ", which was there already"
        name = escape(_shown(Path(saved.data_path), path))
        line += f"; its data: {name}, {size(saved.data_nbytes)}{was_there}"
    if saved.packed_path is not None:
        name = escape(_shown(Path(saved.packed_path), path))
        line += f"; packed: {name}, {size(saved.packed_nbytes)}"
    click.echo(line)


def _shown(data: Path, bundle: Path) -> str:
    """Return the data file's name; its whole path if `bundle` is a link elsewhere."""
    beside = bundle.parent.resolve() == data.parent
    return data.name if beside else str(data)


@click.command()
@click.argument("bundle", metavar="MODEL.kvc")
@click.option(
    "-o", "--output", metavar="OUT.kvc", required=True, help="The bundle to write."
)
@data_folders_option
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
def join(bundle: str, output: str, data_folders: tuple[str, ...], quiet: bool) -> None:
    """Write MODEL.kvc and its data files as one file.

    The data files stay; kvc gc removes those that no bundle needs.

    Example: kvc join model.kvc -o whole.kvc
    """
    from kvc.schema.container import join_bundle
    from kvc.tools.outputs import check_bundle_output
    from kvc.tools.progress import Stages

    path = check_bundle_output(output)
    with Stages(quiet=quiet) as stages:
        saved = join_bundle(bundle, path, data_folders, stages.show)
    click.echo(f"{escape(str(path))}: {size(saved.nbytes)}, all in one file")
