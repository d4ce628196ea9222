"""kvc's side of `data.py`, and safetensors': one step a process, one JSON line each.

Each step measures one file: `open` (load, first result), `touch` (all weights, then
given back), `run` (memory after each method, decoding, release), `safetensors` and
`pages` (the same bytes without kvc), `verify` and `hash` (every byte).
"""

import argparse
import hashlib
import json
import mmap
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import data_process
import numpy as np

from kvc import runtime
from kvc.schema.container import verify_bundle

CHUNK = 8  # tokens of a prefill, as the peer's
Figures = dict[str, float]


def clock(action: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def tokens(method: str) -> np.ndarray:
    """Return the input of a method, as the peer's."""
    return np.ones((1, 1 if method == "decode" else CHUNK), np.int64)


def touch_pages(arrays: Sequence[np.ndarray]) -> None:
    """Read one byte of each page."""
    for array in arrays:
        array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max(initial=0)


def warm_up(path: str) -> None:
    """Load and run a small bundle, so that libraries are there before counting.

    The product is as wide as those to come: a library keeps 10 MB after its first.
    """
    import torch

    torch.ones(CHUNK, 2048) @ torch.ones(5632, 2048).T
    with runtime.load(path) as program, program.session() as session:
        for name in sorted(program.methods):
            session.call(name, tokens(name))


def open_once(options: argparse.Namespace) -> Figures:
    """Time `load` and the first result, or only the first load of a process."""
    if not options.first:
        warm_up(options.small)
    before = data_process.residency()
    data_process.prepare_cache(options.path, options.cold)
    begin = time.perf_counter()
    program = runtime.load(options.path, mode=options.mode)
    opened = time.perf_counter() - begin
    pulled = data_process.cached_nbytes(options.path) if options.cold else 0
    figures = {"open_s": opened, "pulled_nbytes": pulled}
    figures |= data_process.grown("loaded", before, data_process.residency())
    if not options.first:
        session = program.session()
        first = clock(lambda: session.call("decode", tokens("decode")))
        figures["first_s"] = opened + first
    return figures


def touch(options: argparse.Namespace) -> Figures:
    """Ask for every weight, read every page, and give all back."""
    warm_up(options.small)
    data_process.prepare_cache(options.path, options.cold)
    before = data_process.residency()
    with runtime.load(options.path, mode=options.mode) as program:
        handles = [program.data[name] for name in program.data]
        begin = time.perf_counter()
        arrays = [handle.array() for handle in handles]
        asked = time.perf_counter()
        touch_pages(arrays)
        figures = {"asked_s": asked - begin, "pages_s": time.perf_counter() - asked}
        figures["touched_s"] = figures["asked_s"] + figures["pages_s"]
        figures |= data_process.grown("touched", before, data_process.residency())
        arrays.clear()
        figures["free_s"] = clock(lambda: [handle.free() for handle in handles])
        figures |= data_process.grown("freed", before, data_process.residency())
    return figures


def run(options: argparse.Namespace) -> Figures:
    """Load, run method after method, and count memory after each; decode; release."""
    warm_up(options.small)
    data_process.prepare_cache(options.path, cold=False)
    before, begin = data_process.residency(), time.perf_counter()
    program = runtime.load(options.path, mode=options.mode)
    figures = {"load_s": time.perf_counter() - begin}
    figures |= data_process.grown("loaded", before, data_process.residency())
    session = program.session()
    for name in options.methods.split(","):
        session.call(name, tokens(name))
        figures.setdefault("first_s", time.perf_counter() - begin)
        figures |= data_process.grown(name, before, data_process.residency())
    step = partial(session.call, "decode", tokens("decode"))
    figures["decode_s"] = statistics.median(clock(step) for _ in range(options.steps))
    figures |= data_process.grown("decoded", before, data_process.residency())
    figures["release_s"] = clock(program.release)
    figures |= data_process.grown("released", before, data_process.residency())
    figures["again_s"] = clock(step)
    session.close()
    program.close()
    del step, session, program
    return figures | data_process.grown("closed", before, data_process.residency())


def safetensors(options: argparse.Namespace) -> Figures:
    """Open a checkpoint, get every tensor, and read every page."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    torch.ones(2) @ torch.ones(2)
    data_process.prepare_cache(options.path, options.cold)
    before, begin = data_process.residency(), time.perf_counter()
    if options.reader == "load_file":
        tensors = list(load_file(options.path).values())
        figures = {"open_s": time.perf_counter() - begin}
    else:
        with safe_open(options.path, "pt") as file:
            figures = {"open_s": time.perf_counter() - begin}
            tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    figures["asked_s"] = time.perf_counter() - begin
    touch_pages([tensor.numpy() for tensor in tensors])
    figures["touched_s"] = time.perf_counter() - begin
    return figures | data_process.grown("touched", before, data_process.residency())


def pages(options: argparse.Namespace) -> Figures:
    """Map a file privately and read one byte of each page: the least that can be."""
    data_process.prepare_cache(options.path, options.cold)
    begin = time.perf_counter()
    with Path(options.path).open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    touch_pages([np.frombuffer(whole, np.uint8)])
    return {"touched_s": time.perf_counter() - begin}


def verify(options: argparse.Namespace) -> Figures:
    """Verify every byte as `kvc verify` does, without its start."""
    data_process.prepare_cache(options.path, options.cold)
    return {"verify_s": clock(lambda: verify_bundle(options.path))}


def command(options: argparse.Namespace) -> Figures:
    """Run `kvc verify`, its start included."""
    data_process.prepare_cache(options.path, options.cold)
    line = [Path(sys.executable).with_name("kvc"), "verify", options.path]
    verified = partial(subprocess.run, line, check=True, capture_output=True)
    return {"verify_s": clock(verified)}


def hash_all(options: argparse.Namespace) -> Figures:
    """Hash every byte with one thread."""
    data_process.prepare_cache(options.path, options.cold)
    with Path(options.path).open("rb", buffering=0) as file:
        return {"verify_s": clock(lambda: hashlib.file_digest(file, "sha256"))}


STAGES = {
    "open": open_once,
    "touch": touch,
    "run": run,
    "safetensors": safetensors,
    "pages": pages,
    "verify": verify,
    "hash": hash_all,
    "command": command,
}


def main() -> None:
    """Do one step and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--path", required=True)
    parser.add_argument("--mode", default="map")
    parser.add_argument("--reader", choices=("safe_open", "load_file"))
    parser.add_argument("--methods", default="decode")
    parser.add_argument("--small", help="a small bundle to warm up with")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(STAGES[options.stage](options)) + "\n")


if __name__ == "__main__":
    main()
