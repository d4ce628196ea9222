"""One GGUF file by kvc and by llama.cpp, in turns.

`python tests/benchmarks/gguf_speed.py FILE... --llama PYTHON [--rounds 5]
[--threads 2] [--prompt 512] [--tokens 64]`. `PYTHON` is the interpreter of an
environment with `pip install llama-cpp-python==0.3.36`. kvc compiles the file first, by
`cpu_q8`, which uses quantized weights as they are. Each has a process of its own, which
computes while the other waits; a round is a prompt and some tokens of each. Prints
medians over the rounds, in tokens/s, and the seconds and peak memory of compiling.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np


def work_kvc(path: Path, threads: int, prompt: int, tokens: int) -> None:
    """Answer each line of input with seconds of a prompt and of decoding."""
    from kvc.runtime import load

    program = load(path, threads=threads)
    ids = np.random.default_rng(0).integers(100, 20_000, (1, prompt))
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        with program.session() as session:
            start = time.perf_counter()
            session.prefill(ids)
            middle = time.perf_counter()
            for i in range(tokens):
                session.decode(ids[:, i : i + 1])
            took = middle - start, time.perf_counter() - middle
        print(json.dumps(took), flush=True)


def work_llama(path: Path, threads: int, prompt: int, tokens: int) -> None:
    """Answer each line of input with seconds of a prompt and of decoding."""
    from llama_cpp import Llama

    model = Llama(
        str(path), n_ctx=2048, n_batch=512, n_threads=threads,
        n_threads_batch=threads, verbose=False,
    )  # fmt: skip
    ids = np.random.default_rng(0).integers(100, 20_000, prompt).tolist()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        model.reset()
        start = time.perf_counter()
        model.eval(ids)
        middle = time.perf_counter()
        for i in range(tokens):
            model.eval([ids[i]])
        print(json.dumps((middle - start, time.perf_counter() - middle)), flush=True)


def compiled(file: Path, out: Path) -> None:
    """Compile a file, and print the seconds and the peak memory that it took."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "kvc.tools", "compile", str(file)]
    command += ["--recipe", "cpu_q8", "-q", "-o", str(out)]
    subprocess.run(command, check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    print(
        f"{file.name}: compiled in {time.perf_counter() - start:.1f} s, {peak:.0f} MB"
    )


def ask(worker: "subprocess.Popen[str]") -> Any:
    """Return what a worker answers to a line."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())


def measure(file: Path, bundle: Path, options: argparse.Namespace) -> None:
    """Print the medians of both."""
    sizes = [str(each) for each in (options.threads, options.prompt, options.tokens)]
    commands = {
        "kvc": [sys.executable, __file__, "--work", "kvc", str(bundle), *sizes],
        "llama.cpp": [options.llama, __file__, "--work", "llama", str(file), *sizes],
    }
    workers = {
        name: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name, command in commands.items()
    }
    took: dict[str, list[Any]] = {name: [] for name in workers}
    for worker in workers.values():
        assert worker.stdout is not None
        worker.stdout.readline()
    for _ in range(options.rounds):
        for name, worker in workers.items():
            took[name].append(ask(worker))
    for worker in workers.values():
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()
    counts = options.prompt, options.tokens
    for name, each in took.items():
        speeds = [counts[i] / median(one[i] for one in each) for i in (0, 1)]
        told = f"prompt {speeds[0]:8.0f} tokens/s, decode {speeds[1]:7.1f} tokens/s"
        print(f"  {name:10} {told}", flush=True)


def main() -> None:
    """Measure some files, or be a worker."""
    if sys.argv[1:2] == ["--work"]:
        kind, path, *sizes = sys.argv[2:]
        work = work_kvc if kind == "kvc" else work_llama
        work(Path(path), *map(int, sizes))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for file in options.files:
            bundle = Path(folder) / f"{file.stem}.kvc"
            compiled(file, bundle)
            measure(file, bundle, options)


if __name__ == "__main__":
    main()
