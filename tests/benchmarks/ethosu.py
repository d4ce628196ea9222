"""What a decoder costs on an Ethos-U: bits per byte, and memory and cycles by Vela.

`python tests/benchmarks/ethosu.py [--kilobytes 3]`. The demo model, by the integers of
both recipes: calibrated with the start of the training text of
`tools/dev/train_demo.py`, measured on the start of its held-out text, as `kvc eval`
does, and compiled by Vela for U85 with 256 MACs. Writes the table of
`compiler/backends/ETHOSU.md`.
"""

import argparse
import csv
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from kvc.compiler import compile_program
from kvc.compiler.models import BUILTIN
from kvc.runtime import load
from kvc.runtime.calibration import Samples
from kvc.runtime.delegates.ethosu.backend import EthosUHandle
from kvc.runtime.delegates.ethosu.tosa_file import tosa_bytes
from kvc.runtime.delegates.ethosu.vela import VELA
from kvc.runtime.scoring import evaluate
from kvc.tools.dev.train_demo import read_library

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "compiler/backends/ETHOSU.md"
MARK = "<!-- by tests/benchmarks/ethosu.py -->\n"
SAMPLE_NBYTES = 20_000
WINDOW, STRIDE = 512, 256
CAPACITY = 512
TARGET = "ethosu:u85-256"
RECIPE = """
[backend]
name = "ethosu"
rest = "cpu"
[backend.options]
activations = "{}"
[buckets]
seq = [16, 128, 256]
capacity = [{}]
"""
ROWS = ("", "int16", "int8")  # activations; "" is the model without a backend


def compiled(folder: Path, activations: str, samples: Samples) -> Path:
    """Compile the demo model."""
    spec, recipe = BUILTIN["demo"](), "fp32"
    if activations:
        recipe = str(folder / f"ethosu_{activations}.toml")
        Path(recipe).write_text(RECIPE.format(activations, CAPACITY))
    made = compile_program(
        spec.model,
        spec.methods,
        recipe,
        {"tokenizer": spec.metadata["tokenizer"]},
        states=spec.states,
        calibrate=samples if activations else None,
    )
    path = folder / "demo.kvc"
    made.save(path)
    return path


def report_of(path: Path) -> Mapping[str, Mapping[str, int]]:
    """Return what Vela says, by partition."""
    with load(path) as program:
        raw = program.pack(TARGET)[0].content()
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        told = json.loads(archive.read("report.json"))["partitions"]
    return {f"{one['method']} {one['file']}": one for one in told}


def scatter_cycles(path: Path, folder: Path) -> int:
    """Return how many cycles of a decode Vela counts for SCATTER."""
    with load(path) as program:
        program.pack()
        handles = program._engine._resources._handles.values()
        found = [each for each in handles if isinstance(each, EthosUHandle)]
        units = [unit for each in found for unit in each.units("unit", "", {})]
        graphs = [unit.graph for unit in units]
        (graph,) = (g for g in graphs if g.tensors[g.inputs[0]].shape[1] == 1)
        (folder / "decode.tosa").write_bytes(tosa_bytes(graph))
    command = [
        *(sys.executable, "-m", "ethosu.vela", "decode.tosa", "--verbose-performance"),
        *("--accelerator-config", "ethos-u85-256", "--output-dir", "."),
    ]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with (folder / "decode_per-layer.csv").open(newline="") as file:
        rows = [one for one in csv.DictReader(file) if one["NNG Operator"] == "Scatter"]
    return sum(int(float(one["Op Cycles"])) for one in rows)


def row(folder: Path, activations: str, samples: Samples, text: bytes) -> str:
    """Return a row of the page."""
    path = compiled(folder, activations, samples)
    with load(path) as program:
        found = evaluate("demo", program, text, WINDOW, STRIDE).bits_per_byte
    if not activations:
        return f"| float32 | {found:.4f} | | | | |"
    told = report_of(path)
    decode = next(v for k, v in told.items() if k.startswith("decode"))
    chunk = next(v for k, v in told.items() if "prefill " in k and "seq=16." in k)
    every = decode["cycles"], scatter_cycles(path, folder), chunk["cycles"]
    cells = [f"{one:,}" for one in every]
    memory = f"{decode['sram_nbytes']:,} + {decode['other_nbytes']:,}"
    return f"| {activations} | {found:.4f} | {' | '.join(cells)} | {memory} |"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kilobytes", type=int, default=3)
    kilobytes = parser.parse_args().kilobytes
    VELA.check()
    texts = read_library()
    train = texts[0][:SAMPLE_NBYTES].decode(errors="ignore").encode()
    lines = [
        "| activations | bits per byte | cycles, decode | of these SCATTER | "
        "cycles, prefill of 16 | bytes in SRAM and beside it, decode |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sample.txt").write_bytes(train)
        samples = Samples(folder / "sample.txt")
        for activations in ROWS:
            lines.append(
                row(folder, activations, samples, texts[1][: kilobytes * 1000])
            )
            print(lines[-1], file=sys.stderr)
    before, _, rest = PAGE.read_text().partition(MARK)
    after = rest.partition(MARK)[2]
    PAGE.write_text(f"{before}{MARK}\n" + "\n".join(lines) + f"\n\n{MARK}{after}")


if __name__ == "__main__":
    main()
