"""Models without a cache by kvc and by ONNX Runtime, in turns.

`python tests/benchmarks/module_speed.py [MODELS] [--recipes cpu_fp32 xnnpack_fp32]
[--rounds 7] [--threads 2] [--json FILE]` needs `pip install onnx==1.23.2
onnxruntime==1.32.0`. Every stack has a process of its own, which computes while the
others wait; a round is some calls of each, its figure the fastest of them. Prints the
median over the rounds, in ms, ratios to ONNX Runtime's, and how far each is from eager.
`ort` is float32, `ort_dynamic` ONNX Runtime's dynamic int8, `ort_static` its static
int8 (QDQ, calibrated with the input itself).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

SUPPORT: Final = Path(__file__).parent
SECONDS: Final = 0.6  # of calls in a round


def prepare(name: str, recipes: Sequence[str], folder: Path, int8: bool) -> None:
    """Write a model's bundles, its ONNX files, its input and eager's result."""
    import torch
    from module_speed_models import make

    from kvc.compiler import Method, compile_program

    model, inputs = make(name)
    with torch.inference_mode():
        expected = model(*inputs).clone().numpy()
    np.savez(folder / "case.npz", x=inputs[0].numpy(), y=expected)
    for recipe in recipes:
        bundle = compile_program(model, [Method("forward", inputs)], recipe=recipe)
        bundle.save(folder / f"{recipe}.kvc")
    path = folder / "ort.onnx"
    torch.onnx.export(model, inputs, path, input_names=["x"], dynamo=False)
    if int8:
        quantize(folder)


def quantize(folder: Path) -> None:
    """Write ONNX Runtime's dynamic and static int8 forms of its float32 file."""
    from onnxruntime import quantization as q

    given = np.load(folder / "case.npz")["x"]

    class Once(q.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{"x": given}]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    ready = folder / "ready.onnx"
    q.quant_pre_process(folder / "ort.onnx", ready, skip_symbolic_shape=True)
    q.quantize_dynamic(ready, folder / "ort_dynamic.onnx", per_channel=True)
    q.quantize_static(ready, folder / "ort_static.onnx", Once(), per_channel=True)


def kvc_call(path: Path, x: np.ndarray, threads: int) -> Callable[[], np.ndarray]:
    """Return a call of a bundle's method."""
    from kvc.runtime import load

    session = load(path, threads=threads).session()
    return lambda: np.asarray(session.forward(x))


def ort_call(path: Path, x: np.ndarray, threads: int) -> Callable[[], np.ndarray]:
    """Return a call of an ONNX file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"x": x})[0]


def work(path: Path, threads: int) -> None:
    """Answer each line of input with the fastest of some calls, in seconds."""
    case = np.load(path.parent / "case.npz")
    make = kvc_call if path.suffix == ".kvc" else ort_call
    call = make(path, case["x"], threads)
    made, expected = call(), case["y"]
    error = float(np.abs(made - expected).max() / expected.std())
    print(json.dumps(error), flush=True)
    for _ in sys.stdin:
        took, end = [], time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(took) < 3:
            start = time.perf_counter()
            call()
            took.append(time.perf_counter() - start)
        print(json.dumps(min(took)), flush=True)


def measure(folder: Path, stacks: Sequence[str], rounds: int, threads: int) -> dict:
    """Return each stack's median over the rounds, in ms, and its error."""
    workers, found = {}, {}
    for stack in stacks:
        path = next(folder.glob(f"{stack}.[ko]*"))
        command = [sys.executable, __file__, "--work", path, "--threads", str(threads)]
        workers[stack] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        found[stack] = {"error": json.loads(workers[stack].stdout.readline())}
    took = {stack: [] for stack in stacks}
    for _ in range(rounds):
        for stack, worker in workers.items():
            worker.stdin.write("\n")
            worker.stdin.flush()
            took[stack].append(1e3 * json.loads(worker.stdout.readline()))
    for stack, worker in workers.items():
        worker.stdin.close()
        worker.wait()
        found[stack]["ms"] = median(took[stack])
    return found


def main() -> None:
    """Measure the models, and print a table."""
    sys.path.insert(0, str(SUPPORT))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--recipes", nargs="+", default=["cpu_fp32", "xnnpack_fp32"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--int8", action="store_true", help="ONNX Runtime's int8, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.threads)
        return
    from module_speed_models import MODELS

    stacks = [*options.recipes, "ort"]
    stacks += ["ort_dynamic", "ort_static"] if options.int8 else []
    results = {}
    for name in options.models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            prepare(name, options.recipes, Path(folder), options.int8)
            found = measure(Path(folder), stacks, options.rounds, options.threads)
        results[name] = found
        for stack, each in found.items():
            ratio = found["ort"]["ms"] / each["ms"]
            print(
                f"{name:10} {stack:14} {each['ms']:8.2f} ms  {ratio:5.2f} of ort's"
                f"  error {each['error']:.1e}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
