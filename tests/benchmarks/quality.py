"""Bits per byte of the demo model under each recipe, on held-out library modules.

`python tests/benchmarks/quality.py [--kilobytes 100] [--reference]`. The text is the
start of the held-out set of `tools/dev/train_demo.py`, of the running interpreter's
library, in windows of 512 bytes, each half context; each recipe compiles the model's
`forward`, and `kvc eval` is what measures it. Prints a table.
"""

import argparse
import runpy
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.models import BUILTIN
from kvc.recipes import known_recipes
from kvc.runtime import load
from kvc.tools.evaluation import Evaluation, evaluate
from kvc.tools.text import size

WINDOW, STRIDE = 512, 256
TRAINER = Path(__file__).parents[2] / "tools/dev/train_demo.py"


def held_out(kilobytes: int) -> bytes:
    """Return the start of the held-out text."""
    text: bytes = runpy.run_path(str(TRAINER))["read_library"]()[1]
    return text[: kilobytes * 1000]


def measure(raw: bytes, reference: bool | None) -> Iterator[Evaluation]:
    """Compile the demo model by each recipe, and evaluate it."""
    spec = BUILTIN["demo"]()
    example = torch.zeros(1, 8, dtype=torch.int64)
    method = Method(
        "forward", args=(example,), dynamic={"tokens": {1: Dim("seq", 1, WINDOW)}}
    )
    for recipe in known_recipes():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "demo.kvc"
            compile_program(spec.model, [method], recipe, spec.metadata).save(path)
            with load(path, reference=reference) as program:
                yield evaluate("demo", program, raw, WINDOW, STRIDE)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kilobytes", type=int, default=100)
    parser.add_argument("--reference", action="store_true", default=None)
    options = parser.parse_args()
    raw = held_out(options.kilobytes)
    print(f"{len(raw)} bytes, Python {sys.version.split()[0]}\n")
    print("| recipe | weights | bits per byte | perplexity of a byte |")
    print("| --- | --- | --- | --- |")
    for one in measure(raw, options.reference):
        weights = size(one.weights_nbytes)
        bits, perplexity = f"{one.bits_per_byte:.4f}", f"{one.perplexity:.3f}"
        print(f"| {one.recipe} | {weights} | {bits} | {perplexity} |", flush=True)


if __name__ == "__main__":
    main()
