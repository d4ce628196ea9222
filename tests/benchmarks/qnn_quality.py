"""What the recipe `qnn_a16w8` costs the demo model, in bits per byte.

`python tests/benchmarks/qnn_quality.py [--kilobytes 3] [--library 600]`. Calibrates and
measures as `calibration.py` does, by the reference, which computes on the same grids;
and with Qualcomm's library on so many bytes, in windows of as many.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvc.compiler import compile_program
from kvc.compiler.models import BUILTIN
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import load
from kvc.runtime.calibration import Samples
from kvc.runtime.scoring import evaluate
from kvc.tools.dev.train_demo import read_library

ROOT = Path(__file__).parents[2]
SAMPLE_NBYTES = 20_000
WINDOW, STRIDE = 512, 256
BUCKETS = {"seq": (1, 16, 64, 256), "capacity": (512,)}
WEIGHTS_ALONE = '[linear]\nscheme = "w8"\n[embedding]\nscheme = "int8"\n'


def compiled(path: Path, recipe: Recipe | str, samples: Samples | None) -> Path:
    """Compile the demo model."""
    spec = BUILTIN["demo"]()
    metadata = {"tokenizer": spec.metadata["tokenizer"]}
    compile_program(
        spec.model,
        spec.methods,
        recipe,
        metadata,
        states=spec.states,
        calibrate=samples,
    ).save(path)
    return path


def measure(path: Path, raw: bytes, **options: object) -> float:
    """Return the bits per byte of a bundle."""
    window = min(WINDOW, len(raw))
    stride = min(STRIDE, window // 2)
    with load(path, **options) as program:  # type: ignore[arg-type]
        found = evaluate("demo", program, raw, window, stride).bits_per_byte
    assert found is not None
    return found


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def rows(folder: Path, texts: Sequence[bytes], on_library: int) -> None:
    """Print a line for each way to compute."""
    train, held_out = texts
    (folder / "sample.txt").write_bytes(train)
    (folder / "w8.toml").write_text(WEIGHTS_ALONE)
    fixed = replace(load_recipe("qnn_a16w8"), buckets=BUCKETS)
    samples = Samples(folder / "sample.txt")
    plain = compiled(folder / "fp32.kvc", "fp32", None)
    weights = compiled(folder / "w8.kvc", str(folder / "w8.toml"), None)
    mine = compiled(folder / "a16w8.kvc", fixed, samples)
    say(f"{len(held_out)} bytes")
    say(f"fp32: {measure(plain, held_out):.4f}")
    say(f"int8 weights alone: {measure(weights, held_out):.4f}")
    say(f"qnn_a16w8, reference: {measure(mine, held_out, reference=True):.4f}")
    if on_library:
        some = held_out[:on_library]
        say(f"{len(some)} bytes")
        say(f"fp32: {measure(plain, some):.4f}")
        say(f"qnn_a16w8, reference: {measure(mine, some, reference=True):.4f}")
        say(f"qnn_a16w8, library: {measure(mine, some, device='qnn:v75'):.4f}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kilobytes", type=int, default=3)
    parser.add_argument("--library", type=int, default=0)
    given = parser.parse_args()
    texts = read_library()
    train = texts[0][:SAMPLE_NBYTES].decode(errors="ignore").encode()
    with tempfile.TemporaryDirectory() as folder:
        rows(Path(folder), (train, texts[1][: given.kilobytes * 1000]), given.library)


if __name__ == "__main__":
    sys.exit(main())
