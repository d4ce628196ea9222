"""`kvc join`: put a bundle and its data files into one file."""

import click

from kvc.tools.data_folders import data_folders_option


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
    from kvc.schema.text import escape, size
    from kvc.tools.outputs import check_bundle_output
    from kvc.tools.progress import Stages

    path = check_bundle_output(output)
    with Stages(quiet=quiet) as stages:
        saved = join_bundle(bundle, path, data_folders, stages.show)
    click.echo(f"{escape(str(path))}: {size(saved.nbytes)}, all in one file")
