"""A bundle run by C, by Python and, as a GGUF file, by llama.cpp: start, speed, memory.

    python tests/benchmarks/without_python.py BUNDLE [--gguf FILE --llama FOLDER]

Each process is started anew, in rounds: kvc-run, which is compiled here against the
library of the installed kernels, Python's `kvc.generate`, and llama-completion of
FOLDER, the `bin` of a build of llama.cpp. The first figure is the wall time of a
process that prints one token after a prompt of seven words; the second is the peak of
its resident memory; the third is the speed of decoding 64 tokens, as the program tells
it. Medians of ROUNDS.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kvc.runtime import native

ROUNDS, THREADS, COUNT = 7, 2, 64
PROMPT = "The capital of France is a city"
PYTHON = """
import sys, time
from kvc.runtime import generate, load
program = load(sys.argv[1], threads=int(sys.argv[2]))
with program.session() as session:
    settings = {"max_tokens": int(sys.argv[4]), "do_sample": False}
    answer = generate(session, sys.argv[3], stop_tokens=(), **settings)
    steps = len(list(answer)) - 1
print(f"answer: {steps / max(answer.decode.seconds, 1e-9):.1f} tokens/s")
"""


def kvc_run(folder: Path) -> str:
    """Compile kvc-run, and return its path."""
    home = Path(str(native.__file__)).parent
    examples = sorted(map(str, (home / "libkvc" / "examples").glob("*.c")))
    (library,) = home.glob("_kernels*.so")
    made = folder / "kvc-run"
    linked = [str(library), f"-Wl,-rpath,{library.parent}", "-lm", "-o", str(made)]
    subprocess.run(["cc", "-std=c11", "-O2", *examples, *linked], check=True)
    return str(made)


def commands(
    options: argparse.Namespace, folder: Path, count: int
) -> dict[str, list[str]]:
    """Return what runs one answer of `count` tokens, by name."""
    threads, tokens = str(THREADS), str(count)
    (folder / "answer.py").write_text(PYTHON)
    found = {
        "kvc-run": [
            *(str(folder / "kvc-run"), "--verbose", "--temperature", "0"),
            *("--threads", threads, "--max-tokens", tokens, "--min-tokens", tokens),
            *(options.bundle, PROMPT),
        ],
        "Python": [
            *(sys.executable, str(folder / "answer.py"), options.bundle, threads),
            *(PROMPT, tokens),
        ],
    }
    if options.gguf:
        found["llama.cpp"] = [
            *(str(Path(options.llama) / "llama-completion"), "-m", options.gguf),
            *("-p", PROMPT, "-n", tokens, "-t", threads, "--temp", "0", "-no-cnv"),
            *("--no-warmup", "--ignore-eos", "-fa", "on", "-c", "2048"),
        ]
    return found


def run(command: list[str]) -> tuple[float, float, float]:
    """Return seconds, peak MB, and tokens a second as the program tells them."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as told:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=told, stderr=told, env=environment
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = status
        told.seek(0)
        text = told.read().decode(errors="replace")
    if status:
        raise SystemExit(f"{command[0]} failed:\n{text}")
    own = re.search(r"^answer:.*?([\d.]+) tokens/s", text, re.MULTILINE)
    theirs = re.search(r" eval time =.*?([\d.]+) tokens per second", text)
    speed = own or theirs
    return seconds, used.ru_maxrss / 1000, float(speed.group(1)) if speed else 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("--gguf")
    parser.add_argument("--llama", default=".")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        kvc_run(folder)
        first, long = (commands(options, folder, n) for n in (1, COUNT))
        taken: dict[str, list[tuple[float, float, float]]] = {
            name: [] for name in first
        }
        for name in first:
            run(first[name])  # files into the page cache
        for _ in range(ROUNDS):
            for name, figures in taken.items():
                seconds, memory, _ = run(first[name])
                figures.append((seconds, memory, run(long[name])[2]))
    print("               first token s   peak MB   decode tokens/s")
    for name, figures in taken.items():
        columns = [statistics.median(column) for column in zip(*figures, strict=True)]
        print("{:14} {:13.3f} {:9.0f} {:17.1f}".format(name, *columns))


if __name__ == "__main__":
    main()
