"""`kvc verify`: check every byte of a bundle and its data files, or of a data file."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvc.tools.data_folders import data_folders_option

if TYPE_CHECKING:
    from kvc.schema.container import Verified


@click.command()
@click.argument("file", metavar="FILE")
@data_folders_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(file: str, data_folders: tuple[str, ...], as_json: bool) -> None:
    """Check all of FILE: structure, types, memory plan, digests.

    FILE is a bundle (.kvc), which is checked together with its data files, or a data
    file (.kvd). The exit code is 0 if FILE is valid, and otherwise 1, with a message
    that says what is wrong and where.

    Example: kvc verify model.kvc
    """
    from kvc.schema.container import verify_file

    start = time.perf_counter()
    verified = verify_file(file, data_folders)
    seconds = time.perf_counter() - start
    if as_json:
        click.echo(json.dumps(_facts(file, verified, seconds), indent=2))
    else:
        click.echo(_line(file, verified, seconds))


def _facts(path: str, verified: "Verified", seconds: float) -> dict[str, object]:
    return {
        "path": path,
        "ok": True,
        "nbytes": sum(nbytes for _, nbytes in verified.files),
        "digest": verified.digest,
        "files": [{"path": p, "nbytes": nbytes} for p, nbytes in verified.files],
        "seconds": seconds,
    }


def _line(path: str, verified: "Verified", seconds: float) -> str:
    from kvc.tools.text import escape, plural, size

    nbytes, program = sum(nbytes for _, nbytes in verified.files), verified.program
    counts = [plural(verified.blobs, "blob"), size(nbytes)]
    if program is not None:
        methods, states = len(program.methods), len(program.states)
        counts = [plural(methods, "method"), plural(states, "state"), *counts]
    others = [escape(Path(other).name) for other, _ in verified.files[1:]]
    whole = " and ".join([escape(path), *others])
    speed = f"{seconds:.2f} s, {size(round(nbytes / seconds))}/s"
    return f"{whole}: whole ({', '.join(counts)}; {speed})"
