"""`kvc export`: write a bundle as the own file of a target."""

from typing import TYPE_CHECKING

import click

from kvc.tools.options import data_folders_option

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.option(
    "--target",
    required=True,
    metavar="BACKEND:TARGET",
    help="Whose file to write; the error for a wrong name lists those that are here. "
    "BACKEND is enough where it has one target.",
)
@click.option(
    *("-o", "--output"),
    required=True,
    metavar="FILE",
    help="The file to write, or the folder where the target takes one.",
)
@data_folders_option
def export(
    bundle: str, target: str, output: str, data_folders: "Sequence[str]"
) -> None:
    """Write BUNDLE as the own file of a target, such as an NPU.

    The file holds what the target's backend runs of the bundle, at all sizes of its
    buckets. `kvc compile --pack TARGET` stores the same in a bundle.

    Example: kvc export model.kvc --target coreml -o model.mlpackage
    """
    from kvc.runtime import load
    from kvc.runtime.delegates.table import exports_folder
    from kvc.schema.text import escape, size
    from kvc.tools.outputs import (
        check_new_folder,
        check_plain_output,
        write_file,
        write_folder,
    )

    backend = target.partition(":")[0]
    is_new = exports_folder(backend)
    path = check_new_folder(output) if is_new else check_plain_output(output)
    with load(bundle, data_folders=data_folders, backend=backend) as program:
        (made,) = program.pack(target)
        (write_folder if made.folder else write_file)(path, made.content())
    click.echo(f"{escape(output)}: {size(made.nbytes)} for {escape(target)}", err=True)
    if made.remark:
        click.echo(made.remark, err=True)
