"""Peers of `kvc bench --against`: whose file it is tells which program runs it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from kvc.schema.text import escape
from kvc.tools.bench.llama_bench import find_llama_bench, run_llama_bench
from kvc.tools.bench.onnx_bench import check_onnxruntime, run_onnx
from kvc.tools.bench.plan import SpeedTest


@dataclass(frozen=True, slots=True)
class Peer:
    """A model that another runtime runs.

    Attributes:
        path, nbytes: of its file; `nbytes` with the data files beside it.
        name: of the runtime.
        seconds: runs tests with so many threads, and returns the seconds of each.
    """

    path: str
    nbytes: int
    name: str
    seconds: Callable[[Sequence[SpeedTest], int], tuple[float, ...]]


def find_peers(paths: Sequence[str], llama_bench: str, python: str) -> list[Peer]:
    """Return the peers of some files.

    Args:
        paths: of GGUF and ONNX files.
        llama_bench: the program for the former.
        python: that has onnxruntime, for the latter.

    Raises:
        ClickException: a file is missing or neither, or the program is.
    """
    return [_find(path, llama_bench, python) for path in paths]


def _find(path: str, llama_bench: str, python: str) -> Peer:
    if path.endswith(".onnx"):
        check_onnxruntime(python)
        return Peer(path, _nbytes(path), "onnxruntime", partial(run_onnx, python, path))
    if not path.endswith(".gguf"):
        raise click.ClickException(
            f"--against {escape(path)}: give a .gguf file, which llama.cpp runs, or a "
            ".onnx file, which ONNX Runtime runs"
        )
    program = find_llama_bench(llama_bench)
    runs = partial(run_llama_bench, program, path)
    return Peer(path, _nbytes(path), "llama.cpp", runs)


def _nbytes(model: str) -> int:
    """Return the size of a file, and of an ONNX model with its data files.

    Raises:
        ClickException: there is none.
    """
    path = Path(model)
    try:
        beside = [path.with_name(f"{path.name}{end}") for end in ("_data", ".data")]
        beside.append(path.with_suffix(".data"))
        found = [each for each in beside if path.suffix == ".onnx" and each.is_file()]
        return sum(each.stat().st_size for each in (path, *found))
    except OSError as error:
        what = f"cannot read {escape(model)}: {error.strerror}"
        raise click.ClickException(what) from error
