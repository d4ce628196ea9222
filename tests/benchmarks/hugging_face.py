"""Compiling Hugging Face folders: time and memory of the whole `kvc compile`.

`python tests/benchmarks/hugging_face.py --folder FOLDER [--models smollm2 llama-1b]
[--recipes fp32 xnnpack_q8]`. FOLDER needs room for the largest folder and its bundle.
Each folder is a random sharded model; each compilation is a process of its own, whose
memory is sampled each 5 ms. Times are of the whole process, imports too; on a machine
with other work, the seconds of computing say more. The exit code tells whether every
figure was within its limit.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from streaming import OWN, Sampler
from streaming_checkpoint import write_tensors
from transformers import LlamaConfig, LlamaForCausalLM

from kvc.compiler import empty_parameters


@dataclass(frozen=True, slots=True)
class Model:
    """A shape, and what compiling it may take.

    Attributes:
        sizes: of the configuration.
        seconds: of the whole process.
        nbytes: of its own memory, beside the largest tensor twice.
    """

    sizes: Mapping[str, object]
    seconds: float
    nbytes: int


MODELS = {
    "smollm2": Model(  # the shape of SmolLM2-135M
        {
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "intermediate_size": 1536,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
        },
        seconds=60,
        nbytes=1 << 30,
    ),
    "llama-1b": Model(  # the shape of TinyLlama-1.1B
        {
            "hidden_size": 2048,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "intermediate_size": 5632,
            "vocab_size": 32000,
        },
        seconds=300,
        nbytes=1 << 30,
    ),
}


def write_folder(folder: Path, model: Model) -> dict[str, int]:
    """Write a random folder; return its bytes and those of its largest tensor."""
    config = LlamaConfig(**model.sizes, max_position_embeddings=2048)
    with empty_parameters():
        made = LlamaForCausalLM(config)
    shapes = {name: tuple(p.shape) for name, p in made.named_parameters()}
    config.save_pretrained(folder)
    return write_tensors(folder, shapes)


def compile_folder(folder: Path, recipe: str, output: Path) -> dict[str, float]:
    """Run `kvc compile` in a process; return its seconds and its most memory."""
    command = [sys.executable, "-m", "kvc.tools", "compile", folder, "-q"]
    start, before = time.perf_counter(), _cpu_seconds()
    process = subprocess.Popen([*command, "--recipe", recipe, "-o", output])
    sampler = Sampler(process.pid)
    sampler.start()
    code = process.wait()
    seconds = time.perf_counter() - start
    sampler.join()
    if code:
        sys.exit(f"kvc compile failed with exit code {code}")
    bundle = output.stat().st_size
    used = _cpu_seconds() - before
    peak = sampler.peaks[OWN]
    return {"seconds": seconds, "cpu": used, "peak": peak, "bundle": bundle}


def _cpu_seconds() -> float:
    """Return what processes that have ended computed for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(home: Path, names: list[str], recipes: list[str]) -> Iterator[bool]:
    """Print a row for each model and recipe; yield whether it is within limits."""
    print("| model | weights | recipe | time | computing | own memory | bundle |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in names:
        with tempfile.TemporaryDirectory(dir=home) as temporary:
            folder, model = Path(temporary), MODELS[name]
            weights = write_folder(folder, model)
            for recipe in recipes:
                output = folder / f"{recipe}.kvc"
                row = compile_folder(folder, recipe, output)
                output.unlink()
                mb = [f"{row[key] / 1e6:,.0f} MB" for key in ("peak", "bundle")]
                size = f"{weights['checkpoint'] / 1e9:.2f} GB"
                times = [f"{row[key]:.0f} s" for key in ("seconds", "cpu")]
                line = [name, size, recipe, *times, *mb]
                print(f"| {' | '.join(line)} |", flush=True)
                most = model.nbytes + 2 * weights["largest"]
                yield row["seconds"] < model.seconds and row["peak"] < most


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--recipes", nargs="+", default=["xnnpack_q8"])
    arguments = parser.parse_args()
    print(json.dumps({"threads": torch.get_num_threads()}))
    within = list(measure(arguments.folder, arguments.models, arguments.recipes))
    sys.exit(0 if all(within) else "a figure is beyond its limit")


if __name__ == "__main__":
    main()
