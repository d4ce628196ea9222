"""Options that several commands share, and their values.

A command decorated with `loading_options` gets one argument `loading`, which says how
to load a bundle, for `open_program`. Also parsers of amounts in bytes with units, and
of sizes by name.
"""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvc.schema.text import escape

if TYPE_CHECKING:
    from kvc.runtime import Program

_DIGITS: Final = 18  # of a whole number: what 64 bits hold
data_folders_option = click.option(
    "--data-folder",
    "data_folders",
    metavar="FOLDER",
    multiple=True,
    help="Also look for data files here, after the bundle's own folder. Repeatable.",
)


def nbytes_of(text: str, option: str, least: int = 0) -> int:
    """Parse an amount of bytes such as 512M, 1.5G, 100k or 1000000; units are decimal.

    Args:
        text: the amount as the user wrote it.
        option: name of the option, for the message.
        least: smallest amount that is accepted, in bytes.

    Raises:
        click.BadParameter: `text` is no amount of at least `least` bytes.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    factors = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    try:
        nbytes = round(float(number) * factors[unit.lower()])
    except (ValueError, KeyError, OverflowError):
        nbytes = -1
    if nbytes < least:
        raise click.BadParameter(
            f"expected bytes, as 512M or 2G, found {text!r}", param_hint=option
        )
    return nbytes


def whole_number(text: str) -> int | None:
    """Parse a number of digits only; None for other text or more than any size."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def sizes_of(text: str | None) -> dict[str, int]:
    """Parse the value of `--at`, `NAME=N,NAME=N`, into sizes by name.

    Raises:
        click.BadParameter: a part is not of the form NAME=N, or a name occurs twice.
    """
    found: dict[str, int] = {}
    for part in (text or "").split(","):
        name, _, digits = part.strip().partition("=")
        number = whole_number(digits)
        if part and (number is None or name in found):
            expected = "NAME=N, as capacity=4096,tokens=512, each name once"
            raise click.BadParameter(
                f"expected {expected}, found {part!r}", param_hint="--at"
            )
        if number is not None:
            found[name] = number
    return found


@dataclass(frozen=True, slots=True)
class Loading:
    """How to load a bundle.

    Attributes:
        mode: argument `mode` of `kvc.runtime.load`.
        data_folders: further folders to search for data files.
        reference: whether backends compute by their reference implementation; None to
            use it only if a backend's library is missing.
        threads: number of threads to compute with, None for the runtime's choice.
        device: name of the device to run on, None for the backend's choice.
        backend: backend of the recipe to run, None for the first recipe that can run.
        residency: whether to print at the end how much memory the data takes.
        adapter: file of the adapter that sessions have, and what multiplies what it
            adds; None for none.
    """

    mode: str
    data_folders: tuple[str, ...]
    reference: bool | None
    threads: int | None
    device: str | None
    backend: str | None
    residency: bool = False
    adapter: tuple[str, float] | None = None


def program_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for loading bundles to a command, which gets `loading`."""

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
    @wraps(command)
    def with_loading(
        mode: str,
        data_folders: tuple[str, ...],
        reference: bool | None,
        threads: int | None,
        device: str | None,
        backend: str | None,
        **others: object,
    ) -> None:
        loading = Loading(mode, data_folders, reference, threads, device, backend)
        command(loading=loading, **others)

    return with_loading


def loading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for loading to a command, which receives them as `loading`."""

    @program_options
    @click.option(
        "--residency",
        is_flag=True,
        help="At the end, print to stderr how much memory the weights take.",
    )
    @click.option(
        "--adapter",
        metavar="FILE.kva[,scale=S]",
        help="Run with this adapter, which `kvc adapter` made.",
    )
    @wraps(command)
    def with_adapter(
        loading: Loading, residency: bool, adapter: str | None, **others: object
    ) -> None:
        chosen = None if adapter is None else adapter_of(adapter)
        loading = replace(loading, residency=residency, adapter=chosen)
        command(loading=loading, **others)

    return with_adapter


def adapter_of(text: str) -> tuple[str, float]:
    """Parse the value of --adapter, `FILE` or `FILE,scale=S`.

    Raises:
        click.BadParameter: the scale is no number.
    """
    file, comma, said = text.rpartition(",scale=")
    if not comma:
        return text, 1.0
    try:
        return file, float(said)
    except ValueError:
        raise click.BadParameter(
            f"expected a number after scale=, found {said!r}", param_hint="--adapter"
        ) from None


@contextmanager
def open_program(bundle: str, loading: Loading) -> Iterator["Program"]:
    """Load a bundle; if `loading.residency`, report its residency before closing it."""
    with load_bundle(bundle, loading) as program:
        if loading.adapter is not None:
            file, scale = loading.adapter
            program.adapters.use(program.adapters.load(file).name, scale)
        yield program
        if loading.residency:
            click.echo(str(program.residency()), err=True)


def load_bundle(bundle: str, loading: Loading) -> "Program":
    """Load a bundle.

    Raises:
        click.ClickException: it is a model that is not compiled.
        KvcError: as `load`.
    """
    from kvc.runtime import FormatError, LoadError, load
    from kvc.runtime.data.modes import check_mode

    mode = check_mode(loading.mode)
    try:
        return load(
            bundle,
            mode,
            loading.data_folders,
            loading.reference,
            loading.threads,
            device=loading.device,
            backend=loading.backend,
        )
    except (FormatError, LoadError) as error:
        if not _is_model(Path(bundle)):
            raise
        told = f"{error}; compile it first: kvc compile {shlex.quote(bundle)}"
        raise click.ClickException(escape(told, keep="\n")) from error


def _is_model(path: Path) -> bool:
    """Tell whether a path is of a model that `kvc compile` takes."""
    try:
        if path.is_dir():
            return (path / "config.json").is_file()
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False
