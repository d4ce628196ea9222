"""Model A (SmolLM2-135M's shape): compile, file, load, prefill, decode, memory.

`python tests/benchmarks/model_a.py [--recipe xnnpack_q8] [--peer PYTHON]`. Compiling
and running happen in processes of their own, so that each peak is its own. With
`--peer`, the path of a Python that has onnx and onnxruntime, ONNX Runtime runs the
same shape in turn with kvc, three rounds, and medians are printed.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def compile_once(recipe: str, path: str) -> dict[str, float]:
    """Compile model A and say what it took."""
    sys.path.insert(0, str(HERE.parent / "support"))
    from model_a import model_a

    from kvc.compiler import compile_program

    spec = model_a()
    begin = time.perf_counter()
    bundle = compile_program(spec.model, spec.methods, recipe, states=spec.states)
    report = bundle.save(path)
    seconds = time.perf_counter() - begin
    graphs = {
        method.name: method.graph.scratch_nbytes for method in bundle.program.methods
    }
    return {
        "compile_s": seconds,
        "compile_peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "file_mb": report.file_nbytes / 1e6,
        "weights_mb": report.blob_nbytes / 1e6,
        "beside_weights_kb": (report.file_nbytes - report.blob_nbytes) / 1e3,
        **{f"scratch_{name}_kb": nbytes / 1e3 for name, nbytes in graphs.items()},
    }


def run_once(path: str) -> dict[str, float]:
    """Load and run a bundle of model A."""
    import numpy as np

    from kvc.runtime import load

    begin = time.perf_counter()
    program = load(path)
    loading = time.perf_counter() - begin
    prompt = np.random.default_rng(0).integers(0, 49152, (1, 128))
    with program, program.session() as session:
        begin = time.perf_counter()
        session.prefill(prompt)
        first = time.perf_counter() - begin
        prefills = []
        for _ in range(3):
            session.reset()
            begin = time.perf_counter()
            session.prefill(prompt)
            prefills.append(time.perf_counter() - begin)
        steps = []
        for i in range(48):
            begin = time.perf_counter()
            session.decode(prompt[:, i : i + 1])
            steps.append(time.perf_counter() - begin)
    return {
        "load_ms": loading * 1e3,
        "first_prefill_128_s": first,
        "prefill_128_tokens_per_s": 128 / min(prefills),
        "decode_tokens_per_s": 1 / statistics.median(steps),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }


def in_process(*arguments: str) -> dict[str, float]:
    """Run a command that prints one JSON line; return what it says."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def median_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}


def show(title: str, figures: dict[str, float]) -> None:
    """Print figures as lines of a table."""
    sys.stdout.write(f"{title}\n")
    for key, value in figures.items():
        sys.stdout.write(f"  {key:28} {value:12.4g}\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="xnnpack_q8")
    parser.add_argument("--peer", help="a Python with onnx and onnxruntime")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stage", choices=("compile", "run"), help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        stage = (
            compile_once(options.recipe, options.path)
            if options.stage == "compile"
            else run_once(options.path)
        )
        sys.stdout.write(json.dumps(stage) + "\n")
        return
    own = [sys.executable, __file__, "--recipe", options.recipe]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "a.kvc")
        show("compile", in_process(*own, "--stage", "compile", "--path", path))
        ours, theirs = [], []
        for _ in range(options.rounds):
            ours.append(in_process(*own, "--stage", "run", "--path", path))
            if options.peer:
                theirs.append(
                    in_process(options.peer, str(HERE / "onnxruntime_peer.py"))
                )
        show(f"kvc {options.recipe}, median of {options.rounds}", median_of(ours))
        if theirs:
            show("ONNX Runtime, DynamicQuantizeMatMul", median_of(theirs))


if __name__ == "__main__":
    main()
