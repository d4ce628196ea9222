"""The stacks that `xnnpack.py` compares: files, how to make them, how to run them.

In: the options of the command line. Out: a `Case` for each stack, runnable or not.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_bench import step


@dataclass(frozen=True, slots=True)
class Case:
    """A stack with a file.

    Attributes:
        name: as tables show it.
        path: of the file that it runs.
        make: the command that makes the file, empty where its Python is not given.
        run: the command that measures, empty likewise.
        needs: the option that would give what is missing.
    """

    name: str
    path: Path
    make: Sequence[str]
    run: Sequence[str]
    needs: str

    def why_not(self) -> str:
        """Return why it cannot be run, "" where it can."""
        if not self.run:
            return f"{self.needs} is not given"
        return "" if self.path.exists() else f"{self.path} is missing: build it"

    def nbytes(self) -> int:
        """Return the bytes of its file, and of what lies beside it where that is one.

        An ONNX model has a folder of its own, for its weights.
        """
        if self.path.suffix != ".onnx":
            return self.path.stat().st_size
        return sum(file.stat().st_size for file in self.path.parent.iterdir())


def add_stack_options(parser: argparse.ArgumentParser) -> None:
    """Add what says where stacks and their files are."""
    parser.add_argument("folder", type=Path, help="of the files that are measured")
    parser.add_argument(
        "--model", default="a", choices=("a", "b"), help="b: llama.cpp alone beside kvc"
    )
    parser.add_argument(
        "--recipes", nargs="*", default=["xnnpack_q8"], help="of kvc's bundles"
    )
    parser.add_argument(
        "--reference", action="store_true", help="kvc without XNNPACK itself"
    )
    parser.add_argument("--llama", type=Path, help="unpacked, built llama-cpp-python")
    parser.add_argument("--gguf-python", default="", help="a Python that has gguf")
    parser.add_argument(
        "--kinds",
        nargs="*",
        default=["q8_0"],
        choices=("q8_0", "q4_0", "f16", "f32"),
        help="of llama.cpp's files",
    )
    parser.add_argument("--gguf", type=Path, help="a gguf in place of the folder's")
    parser.add_argument("--ort-python", default="", help="one that has onnxruntime")
    parser.add_argument("--executorch-python", default="", help="one that has that")
    parser.add_argument(
        "--schemes",
        nargs="*",
        default=["8da8w"],
        choices=("8da8w", "8da8w-extended", "fp32-extended"),
        help="of ExecuTorch's files; extended: XNNPACK takes all ops that it can",
    )


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the stacks in the order of a round."""
    for recipe in options.recipes:
        yield kvc(options, recipe)
    for kind in ["q8_0"] if options.gguf else options.kinds:
        yield from llama(options, kind)
    if options.model == "a":
        yield onnxruntime(options)
        for scheme in options.schemes:
            yield executorch(options, scheme)


def kvc(options: argparse.Namespace, recipe: str, methods: Sequence[str] = ()) -> Case:
    """Return kvc with a bundle of a recipe, of some methods or of both."""
    file = "-".join((options.model, recipe, *methods))
    path = options.folder / f"{file}.kvc"
    chosen = ("--methods", ",".join(methods)) if methods else ()
    how = ("--reference",) if options.reference else ()
    return Case(
        f"kvc {recipe}",
        path,
        step(sys.executable, "xnnpack_kvc", "build", path, "--recipe", recipe, *chosen),
        step(sys.executable, "xnnpack_kvc", "run", path, *how),
        "",
    )


def llama(options: argparse.Namespace, kind: str) -> Iterator[Case]:
    """Yield llama.cpp as the others are measured, and as it measures itself."""
    path = options.gguf or options.folder / f"{options.model}-{kind}.gguf"
    how = ("--kind", kind.upper())
    make = python_step(options.gguf_python, "xnnpack_llama", "build", path, *how)
    for name, stage in (("", "run"), (", llama-bench", "bench")):
        run: Sequence[str] = ()
        if options.llama:
            where = ("--folder", options.llama)
            run = step(sys.executable, "xnnpack_llama", stage, path, *where)
        yield Case(f"llama.cpp {kind.upper()}{name}", path, make, run, "--llama")


def onnxruntime(options: argparse.Namespace) -> Case:
    """Return ONNX Runtime."""
    path = options.folder / "onnx" / "a.onnx"
    python, script = options.ort_python, "xnnpack_onnxruntime"
    return Case(
        "ONNX Runtime, dynamic int8",
        path,
        python_step(python, script, "build", path),
        python_step(python, script, "run", path),
        "--ort-python",
    )


def executorch(options: argparse.Namespace, scheme: str) -> Case:
    """Return ExecuTorch."""
    path = options.folder / f"a-{scheme}.pte"
    python, script = options.executorch_python, "xnnpack_executorch"
    linear, _, extended = scheme.partition("-")
    how = ("--scheme", linear, *(["--extended"] if extended else []))
    return Case(
        f"ExecuTorch {scheme}",
        path,
        python_step(python, script, "build", path, *how),
        python_step(python, script, "run", path),
        "--executorch-python",
    )


def packages_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the packages of peers, and the Python that is given for them."""
    return {
        "gguf": options.gguf_python,
        "onnx onnxruntime": options.ort_python,
        "executorch torchao": options.executorch_python,
    }


def python_step(python: str, script: str, *arguments: str | Path) -> Sequence[str]:
    """Return the command that runs a script of this folder, empty without a Python."""
    return step(python, script, *arguments) if python else ()
