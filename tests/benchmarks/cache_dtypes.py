"""Narrow caches beside float32 ones on model A's shape: memory, and time of decoding.

`python tests/benchmarks/cache_dtypes.py [--dtype int8] [--recipe fp32]
[--positions 1024 8192]`. Both bundles have the same weights. A session is filled up to
each number of positions by prefill; then decode steps of the two take turns, rewound
after each, so that what else the machine does meets both alike. Memory is what the
states of a session have resident by the kernel's own count; times are medians, with the
fastest in parentheses.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import model_a

from kvc.compiler import ModelSpec, compile_program
from kvc.compiler.models.decoder import DecoderConfig
from kvc.recipes import load_recipe
from kvc.runtime import Session, load

CHUNK = 512


def compile_both(
    options: argparse.Namespace, positions: int, folder: Path
) -> dict[str, Path]:
    """Compile the model with float32 and with narrow caches; return the bundles."""
    given = {name: getattr(model_a.CONFIG, name) for name in DecoderConfig.__slots__}
    sizes = {"vocab": options.vocab, "layers": options.layers}
    changed = {**sizes, "capacity": positions + CHUNK}
    model_a.CONFIG = DecoderConfig(**(given | changed))
    spec: ModelSpec = model_a.model_a()
    paths = {}
    for dtype in ("float32", options.dtype):
        paths[dtype] = folder / f"{dtype}.kvc"
        asked = load_recipe(options.recipe, cache=dtype)
        bundle = compile_program(spec.model, spec.methods, asked, states=spec.states)
        bundle.save(paths[dtype])
    return paths


def resident_kb() -> int:
    """Return the anonymous memory of this process that is resident, in kB."""
    with Path("/proc/self/smaps_rollup").open() as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Anony"))


def fill(session: Session, tokens: np.ndarray, positions: int) -> None:
    """Prefill a session up to a number of positions."""
    while (at := int(session.position[0])) < positions:
        session.call("prefill", tokens[:, at : min(at + CHUNK, positions)])


def state_kb(session: Session) -> float:
    """Return what a session's states have resident, by giving it all back."""
    before = resident_kb()
    session.reset()
    return before - resident_kb()


def steps(
    sessions: Mapping[str, Session], tokens: np.ndarray, count: int
) -> dict[str, list[float]]:
    """Return the milliseconds of decode steps of each session, taken in turns."""
    times: dict[str, list[float]] = {dtype: [] for dtype in sessions}
    for step in range(count):
        for dtype, session in sessions.items():
            begin = time.perf_counter()
            session.call("decode", tokens[:, step : step + 1])
            times[dtype].append((time.perf_counter() - begin) * 1e3)
            session.rewind(1)
    return {dtype: some[2:] for dtype, some in times.items()}


def report(positions: int, times: Mapping[str, Sequence[float]], kb: Sequence[float]):
    """Print one number of positions."""
    (_, plain), (dtype, narrow) = times.items()
    medians = statistics.median(plain), statistics.median(narrow)
    sys.stdout.write(
        f"{positions:6} positions: "
        f"decode {medians[0]:.2f} ({min(plain):.2f}) ms float32, "
        f"{medians[1]:.2f} ({min(narrow):.2f}) ms {dtype}, "
        f"{medians[1] / medians[0]:.2f} of it; states {kb[0] / 1e3:.1f} MB float32, "
        f"{kb[1] / 1e3:.1f} MB {dtype}, {kb[1] / kb[0]:.2f} of it\n"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--recipe", default="fp32")
    # The shape of all layers is model A's; a small vocabulary saves time.
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=model_a.CONFIG.layers)
    parser.add_argument("--positions", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    longest = max(options.positions)
    shape = (1, longest + options.steps + 2)
    tokens = np.random.default_rng(0).integers(0, options.vocab, shape)
    with tempfile.TemporaryDirectory() as folder:
        paths = compile_both(options, longest, Path(folder))
        with load(paths["float32"]) as one, load(paths[options.dtype]) as other:
            sessions = {"float32": one.session(), options.dtype: other.session()}
            for positions in options.positions:
                for session in sessions.values():
                    fill(session, tokens, positions)
                times = steps(sessions, tokens, options.steps + 2)
                report(positions, times, [state_kb(s) for s in sessions.values()])


if __name__ == "__main__":
    main()
