"""The common options of commands that run a bundle, and how these load it.

A command decorated with `loading_options` gets them as one argument, `loading`, for
`open_program`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING

import click

from kvc.tools.data_folders import data_folders_option

if TYPE_CHECKING:
    from kvc.runtime import Program


@dataclass(frozen=True, slots=True)
class Loading:
    """How to load a bundle.

    Attributes:
        mode: as `kvc.runtime.load` has it.
        data_folders: where to look for data files, too.
        reference: whether backends compute by their reference implementation; None
            where their library is missing.
        threads: how many to compute with, None for the runtime's choice.
        device: which device to run on, None for the backend's choice.
        backend: which recipe of a bundle to run, None for the first that can be.
        residency: whether to say at the end what memory the data takes.
    """

    mode: str
    data_folders: tuple[str, ...]
    reference: bool | None
    threads: int | None
    device: str | None
    backend: str | None
    residency: bool


def loading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of loading to a command, which takes them as `loading`."""

    @click.option(
        "--mode",
        type=click.Choice(["map", "read", "huge"]),
        default="map",
        show_default=True,
        help="Map the weights, or read them into memory; huge: into pages of 2 MiB.",
    )
    @data_folders_option
    @click.option(
        "--threads",
        type=click.IntRange(min=1),
        metavar="N",
        help="Compute with N threads.  [default: one for each physical core]",
    )
    @click.option(
        "--reference/--no-reference",
        default=None,
        help="Run the backends' reference implementations, or fail if a backend's "
        "library is missing.  [default: the reference only if it is missing]",
    )
    @click.option(
        "--device",
        metavar="NAME",
        help="The device to run on, as `kvc devices` lists them.  [default: the "
        "backend's choice]",
    )
    @click.option(
        "--backend",
        metavar="BACKEND",
        help="Of a bundle for several recipes, the backend of the one to run.  "
        "[default: the first that can run here]",
    )
    @click.option(
        "--residency",
        is_flag=True,
        help="At the end, print to stderr how much memory the weights take.",
    )
    @wraps(command)
    def with_loading(
        mode: str,
        data_folders: tuple[str, ...],
        reference: bool | None,
        threads: int | None,
        device: str | None,
        backend: str | None,
        residency: bool,
        **others: object,
    ) -> None:
        loading = Loading(
            mode, data_folders, reference, threads, device, backend, residency
        )
        command(loading=loading, **others)

    return with_loading


@contextmanager
def open_program(bundle: str, loading: Loading) -> Iterator["Program"]:
    """Load a bundle, and report its residency before it is closed, where asked to."""
    from kvc.runtime import load
    from kvc.runtime.data.modes import check_mode

    mode = check_mode(loading.mode)
    with load(
        bundle,
        mode,
        loading.data_folders,
        loading.reference,
        loading.threads,
        device=loading.device,
        backend=loading.backend,
    ) as program:
        yield program
        if loading.residency:
            click.echo(str(program.residency()), err=True)
