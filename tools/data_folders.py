"""The option `--data-folder`: where the data files of a bundle are."""

import click

data_folders_option = click.option(
    "--data-folder",
    "data_folders",
    metavar="FOLDER",
    multiple=True,
    help="Also look for data files here, after the bundle's own folder. Repeatable.",
)
