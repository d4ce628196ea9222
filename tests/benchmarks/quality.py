"""Bits per byte of the demo model under each recipe, on held-out library modules.

`python tests/benchmarks/quality.py [--kilobytes 50] [--reference]`. The text is the
start of the held-out set of `tools/dev/train_demo.py`, of the running interpreter's
library. `kvc eval` measures it: windows of 512 bytes, of which the first half is
context, through the cache in chunks of 64 bytes. Prints a table.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.models import BUILTIN
from kvc.compiler.models.decoder import Decoder
from kvc.compiler.models.demo import CONFIG, decoder_methods
from kvc.recipes import Recipe, known_recipes, load_recipe
from kvc.runtime import load
from kvc.runtime.scoring import Evaluation, evaluate
from kvc.schema.text import size
from kvc.tools.dev.train_demo import read_library

WINDOW, STRIDE, CHUNK = 512, 256, 64
NARROW_CACHES = (
    ("cpu_fp32", "float16"),
    ("fp32", "int8"),
    ("cpu_q8", "float16"),
    ("xnnpack_q8", "int8"),
)


def held_out(kilobytes: int) -> bytes:
    """Return the start of the held-out text."""
    _, text = read_library()
    return text[: kilobytes * 1000]


def measure(recipe: Recipe, raw: bytes, reference: bool | None) -> Evaluation:
    """Compile the demo model by a recipe, and evaluate it."""
    spec = BUILTIN["demo"]()
    assert isinstance(spec.model, Decoder)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    seq = {"tokens": {1: Dim("chunk", 1, CHUNK)}}
    every = Method("prefill_all", args=(tokens,), dynamic=seq, role="prefill_all")
    methods = [*decoder_methods(CONFIG, max_chunk=WINDOW), every]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.kvc"
        metadata = {"tokenizer": spec.metadata["tokenizer"]}
        compile_program(spec.model, methods, recipe, metadata).save(path)
        with load(path, reference=reference) as program:
            return evaluate("demo", program, raw, WINDOW, STRIDE)


def recipes() -> Iterator[tuple[str, Recipe]]:
    """Yield recipes of any size, and some with narrow caches; with what caches hold."""
    for recipe in map(load_recipe, known_recipes()):
        if recipe.sizes == "any":
            yield "float32", recipe
    for name, cache in NARROW_CACHES:
        yield cache, load_recipe(name, cache=cache)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kilobytes", type=int, default=50)
    parser.add_argument("--reference", action="store_true", default=None)
    options = parser.parse_args()
    raw = held_out(options.kilobytes)
    out = sys.stdout
    out.write(f"{len(raw)} bytes, Python {sys.version.split()[0]}\n\n")
    out.write("| recipe | caches | weights | bits per byte | perplexity of a byte |\n")
    out.write("| --- | --- | --- | --- | --- |\n")
    for caches, recipe in recipes():
        one = measure(recipe, raw, options.reference)
        bits, perplexity = f"{one.bits_per_byte:.4f}", f"{one.perplexity:.3f}"
        cells = (recipe.name, caches, size(one.weights_nbytes), bits, perplexity)
        out.write(f"| {' | '.join(cells)} |\n")
        out.flush()


if __name__ == "__main__":
    main()
