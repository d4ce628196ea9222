"""Damage files of kvc and of other runtimes alike, and count what comes of it.

`python tests/hostile/rivals.py FOLDER --cases 1000 --executorch PYTHON --onnxruntime
PYTHON --gguf PYTHON LIBRARY`: of each loader that has a Python here (for GGUF, one with
the package gguf, and llama.cpp's libggml-base.so), the same layer is written, and so
many times one to eight bytes next to each other are changed anywhere in the file. No
digest is mended: this is damage, not attack. `--page FILE` writes the counts.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from program_mutations import mutate_bytes

LOADERS = Path(__file__).with_name("loaders.py")
KINDS = {
    "error": "error",
    "same": "loaded, the same",
    "differs": "loaded, another result",
    "ends the process": "ends the process",
    "runs on": "10 s and more",
}


def try_loader(name: str, python: list[str], folder: Path, options) -> Counter[str]:
    """Write a file, damage it, load each; return how many came out how."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "whole"
    environment = {**os.environ, "GGML_LIBRARY": python[-1]}
    command = [python[0], str(LOADERS), name]
    subprocess.run([*command, "make", whole], check=True, env=environment)
    raw = whole.read_bytes()
    for number in range(options.cases):
        dice = random.Random(f"{options.seed} {name} {number}")
        changed = mutate_bytes(raw, dice)
        while changed == raw:
            changed = mutate_bytes(raw, dice)
        (folder / str(number)).write_bytes(changed)
    tried = subprocess.run(
        [*command, "try", whole, folder, str(options.cases)],
        check=True, capture_output=True, text=True, errors="replace",
        env=environment,
    )  # fmt: skip
    counts = Counter(json.loads(tried.stdout.splitlines()[-1]))
    counts["nbytes"] = len(raw)
    return counts


def table(found: dict[str, Counter[str]], cases: int, seed: int) -> str:
    """Return the counts as Markdown."""
    lines = [
        "# Damaged files",
        "",
        "Written by `python tests/hostile/rivals.py`; do not edit. A linear layer and",
        f"relu, {cases:,} files of each format, seed {seed}; one to eight bytes are",
        "others. GGUF has no computation: its tensors are compared.",
        "",
        f"| loader | bytes | {' | '.join(KINDS.values())} |",
        f"| --- | ---: |{' ---: |' * len(KINDS)}",
    ]
    for name, counts in found.items():
        shares = " | ".join(f"{counts[kind] / cases:.1%}" for kind in KINDS)
        lines.append(f"| {name} | {counts['nbytes']:,} | {shares} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Run the command; return 1 if kvc's own file was accepted or ended a process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--executorch", nargs=1, metavar="PYTHON")
    parser.add_argument("--onnxruntime", nargs=1, metavar="PYTHON")
    parser.add_argument("--gguf", nargs=2, metavar=("PYTHON", "LIBRARY"))
    options = parser.parse_args()
    found = {}
    for name in ("kvc", "executorch", "onnxruntime", "gguf"):
        python = [sys.executable] if name == "kvc" else getattr(options, name)
        if python:
            found[name] = try_loader(name, python, options.folder / name, options)
            print(name, dict(found[name]), flush=True)
    if options.page:
        options.page.write_text(table(found, options.cases, options.seed))
    return 1 if found["kvc"]["error"] < options.cases else 0


if __name__ == "__main__":
    sys.exit(main())
