"""What storing values as integers costs the demo model, in bits per byte.

`python tests/benchmarks/calibration.py [--kilobytes 3]`. Calibrates with the start of
the training text of `tools/dev/train_demo.py`, or with texts of the model itself, and
measures on the start of its held-out text, as `kvc eval` does. All that the model
computes is rounded to grids by `FixedPointHandle`. Writes the table of
`compiler/backends/CALIBRATION.md`.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from calibrated_backend import NAME, FixedPoint, FixedPointDelegate, recipe

from kvc.compiler import compile_program, register_backend
from kvc.compiler.models import BUILTIN
from kvc.runtime import load, register_delegate
from kvc.runtime.calibration import Samples
from kvc.runtime.scoring import evaluate
from kvc.tools.dev.train_demo import read_library

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "compiler/backends/CALIBRATION.md"
MARK = "<!-- by tests/benchmarks/calibration.py -->\n"
SAMPLE_NBYTES = 20_000
WINDOW, STRIDE = 512, 256
ROWS = (  # activations, bits, symmetric, samples
    ("float32", 32, False, "text"),
    ("int16, symmetric", 16, True, "text"),
    ("int16, asymmetric", 16, False, "text"),
    ("int8, symmetric", 8, True, "text"),
    ("int8, asymmetric", 8, False, "text"),
    ("int8, asymmetric", 8, False, "generated"),
)


def measure(folder: Path, made: str, samples: Samples | None, raw: bytes) -> float:
    """Return the bits per byte of the demo model by a recipe."""
    spec, path = BUILTIN["demo"](), folder / "demo.kvc"
    metadata = {"tokenizer": spec.metadata["tokenizer"]}
    compile_program(
        spec.model, spec.methods, made, metadata, states=spec.states, calibrate=samples
    ).save(path)
    with load(path) as program:
        found = evaluate("demo", program, raw, WINDOW, STRIDE).bits_per_byte
    assert found is not None
    return found


def table(train: bytes, held_out: bytes) -> str:
    """Return the rows of the page."""
    lines = [
        "| activations | weights | samples | bits per byte | more than float32 |",
        "| --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = measure(folder, "fp32", None, held_out)
        lines.append(f"| float32 | float32 | none | {plain:.4f} | |")
        (folder / "sample.txt").write_bytes(train)
        text = Samples(folder / "sample.txt")
        for activations, bits, symmetric, kind in ROWS:
            samples = text if kind == "text" else Samples.generated()
            made = recipe(folder, bits, symmetric)
            found = measure(folder, made, samples, held_out)
            more = f"{100 * (found / plain - 1):+.2f}%"
            line = f"| {activations} | int8 | {kind} | {found:.4f} | {more} |"
            print(line, file=sys.stderr)
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kilobytes", type=int, default=3)
    kilobytes = parser.parse_args().kilobytes
    register_backend(FixedPoint)
    register_delegate(NAME, FixedPointDelegate)
    texts = read_library()
    train = texts[0][:SAMPLE_NBYTES].decode(errors="ignore").encode()
    made = table(train, texts[1][: kilobytes * 1000])
    before, _, rest = PAGE.read_text().partition(MARK)
    after = rest.partition(MARK)[2]
    PAGE.write_text(f"{before}{MARK}\n{made}\n{MARK}{after}")


if __name__ == "__main__":
    main()
