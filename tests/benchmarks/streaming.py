"""Peak memory of compiling against the size of the model, and of running the result.

`python tests/benchmarks/streaming.py --folder FOLDER [--sizes 0.5 1 2 4 8]
[--recipes fp32 xnnpack_q8] [--eager-up-to 4] [--plot FILE.svg]`. FOLDER needs room for
twice the largest size. Each size is a random sharded checkpoint of float32; compiling
and running happen in processes of their own, whose memory is sampled each 5 ms. The
exit code tells whether every peak was below 1 GB + twice the largest tensor.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from streaming_checkpoint import config_of, empty_decoder, write_checkpoint
from streaming_plot import Row, draw

PERIOD = 0.005
OWN, FILE = ("RssAnon", "RssShmem"), ("RssFile",)
COLUMNS = {
    "checkpoint": "checkpoint",
    "largest": "largest tensor",
    "recipe": "recipe",
    "peak": "peak",
    "peak_file": "file pages",
    "seconds": "time",
    "bundle": "bundle",
    "loaded": "loaded",
    "stepped": "one step",
    "stepped_file": "its file pages",
}


def resident(process: int | str, kinds: tuple[str, ...]) -> int:
    """Return the bytes of some kinds of memory that a process holds."""
    text = Path(f"/proc/{process}/status").read_text()
    lines = [line.split() for line in text.splitlines()]
    return sum(int(line[1]) * 1024 for line in lines if line[0][:-1] in kinds)


class Sampler(threading.Thread):
    """Samples the memory of a process until that ends."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self.process, self.peaks = process, {OWN: 0, FILE: 0}

    def run(self) -> None:
        with suppress(OSError):
            while True:
                for kinds, peak in self.peaks.items():
                    self.peaks[kinds] = max(peak, resident(self.process, kinds))
                time.sleep(PERIOD)


def compile_here(folder: Path, size: float, recipe: str, eager: bool) -> None:
    """Compile a checkpoint, streaming or loaded."""
    from kvc.compiler import Checkpoint, compile_program
    from kvc.compiler.models.decoder import Decoder
    from kvc.compiler.models.demo import decoder_methods

    config = config_of(size * 1e9)
    if eager:
        from safetensors.torch import load_file

        model = Decoder(config).eval()
        for shard in sorted(folder.glob("model-*.safetensors")):
            model.load_state_dict(load_file(shard), strict=False)
    else:
        model = empty_decoder(config)
        Checkpoint(folder).load_into(model)
    bundle = compile_program(model, decoder_methods(config, 64)[1:], recipe)
    bundle.save(folder / "model.kvc")


def run_here(folder: Path) -> None:
    """Load the bundle, run one decode step, and print what that takes."""
    import numpy as np

    from kvc.runtime import load

    begin = time.perf_counter()
    with load(folder / "model.kvc") as program, program.session() as session:
        figures = {"load_s": time.perf_counter() - begin}
        figures["loaded"] = resident("self", OWN)
        begin = time.perf_counter()
        logits = session.decode(np.array([[7]]))
        figures["step_s"] = time.perf_counter() - begin
        figures["stepped"] = resident("self", OWN)
        figures["stepped_file"] = resident("self", FILE)
    assert logits.shape == (1, 32000)
    assert np.isfinite(logits).all()
    sys.stdout.write(json.dumps(figures) + "\n")


def child(*arguments: object) -> subprocess.Popen[str]:
    """Start this file with a stage of its own."""
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def measure(folder: Path, size: float, recipe: str, eager: bool = False) -> Row:
    """Compile in a process of its own and say what that took."""
    begin = time.perf_counter()
    stage = "eager" if eager else "compile"
    process = child(
        "--stage", stage, "--folder", folder, "--sizes", size, "--recipes", recipe
    )
    sampler = Sampler(process.pid)
    sampler.start()
    process.communicate()
    if process.returncode:
        sys.exit(f"compiling {size} GB with {recipe} failed")
    row: Row = {"recipe": recipe, "seconds": time.perf_counter() - begin}
    row |= {"peak": sampler.peaks[OWN], "peak_file": sampler.peaks[FILE]}
    return row | {"bundle": (folder / "model.kvc").stat().st_size}


def run(folder: Path) -> Row:
    """Run the bundle in a process of its own."""
    process = child("--stage", "run", "--folder", folder)
    output, _ = process.communicate()
    if process.returncode:
        sys.exit("running the bundle failed")
    figures: Row = json.loads(output)
    return figures


def show(row: Row) -> None:
    """Print a line of the table."""
    sys.stdout.write("  ".join(f"{_told(row, key):>14}" for key in COLUMNS) + "\n")
    sys.stdout.flush()


def _told(row: Row, key: str) -> str:
    value = row.get(key, "")
    if isinstance(value, str):
        return value
    return f"{value:.1f} s" if key == "seconds" else f"{value / 1e6:,.0f} MB"


def measure_size(
    options: argparse.Namespace, size: float
) -> tuple[list[Row], list[Row]]:
    """Measure all recipes on one checkpoint; return the rows, then eager ones."""
    rows: list[Row] = []
    eager: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        sizes = write_checkpoint(folder, config_of(size * 1e9))
        bound = 1e9 + 2 * sizes["largest"]
        for recipe in options.recipes:
            row = measure(folder, size, recipe) | run(folder) | sizes
            rows.append(row | {"bound": bound})
            show(rows[-1])
        if size <= options.eager_up_to:
            row = measure(folder, size, options.recipes[0], eager=True)
            eager.append(row | sizes | {"recipe": "eager"})
            show(eager[-1])
    return rows, eager


def options_of() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.5, 1, 2, 4, 8])
    parser.add_argument("--recipes", nargs="+", default=["fp32", "xnnpack_q8"])
    parser.add_argument("--eager-up-to", type=float, default=4)
    parser.add_argument("--plot", type=Path)
    stages = ("compile", "eager", "run")
    parser.add_argument("--stage", choices=stages, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, print and draw."""
    options = options_of()
    if options.stage == "run":
        return run_here(options.folder)
    if options.stage:
        eager = options.stage == "eager"
        return compile_here(options.folder, options.sizes[0], options.recipes[0], eager)
    show(dict(COLUMNS))
    rows: list[Row] = []
    eager_rows: list[Row] = []
    for size in options.sizes:
        streamed, loaded = measure_size(options, size)
        rows += streamed
        eager_rows += loaded
    if options.plot:
        draw(rows, eager_rows, options.plot)
    over = [row for row in rows if float(row["peak"]) > float(row["bound"])]
    sys.exit(f"{len(over)} above the bound" if over else 0)


if __name__ == "__main__":
    main()
