"""llama.cpp's side of `xnnpack.py`: a gguf with random weights, in Q8_0 by default.

`build` needs `pip install gguf==0.19.0`. The rest needs the source distribution of
llama-cpp-python 0.3.36, unpacked, its `vendor/llama.cpp` built in `build` with shared
libraries, Release, `-DGGML_NATIVE=ON -DGGML_OPENMP=ON` and the target `llama-bench`.
`run` calls the library through the distribution's low-level bindings and measures as
`xnnpack_measure.py` says; `bench` lets `llama-bench` measure the same in its own way.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from xnnpack_measure import (
    DEPTHS,
    PROMPTS,
    Figures,
    Ids,
    add_run_options,
    measure_process,
    shape_of,
)

MAP = 1  # llama_load_mode
KINDS = ("Q8_0", "Q4_0", "F16", "F32")
BUILT = Path("vendor", "llama.cpp", "build", "bin")


def build(path: str, kind: str) -> None:
    """Write a gguf of the shape of the model that it is named after."""
    import gguf
    import numpy as np
    from gguf_llama import Sizes, llama_writer, write_out

    shape = shape_of(path)
    dim, ffn, layers = shape["dim"], shape["ffn"], shape["layers"]
    kv = dim // shape["heads"] * shape["kv_heads"]
    stored = gguf.GGMLQuantizationType[kind]
    random = np.random.default_rng(0)
    of_file = "ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"
    sizes = Sizes(
        layers=layers,
        context=4096,
        embedding=dim,
        feed_forward=ffn,
        heads=shape["heads"],
        kv_heads=shape["kv_heads"],
        head=dim // shape["heads"],
        vocab=shape["vocab"],
        eps=1e-5,
        rope_base=1e5,
    )
    writer = llama_writer(path, sizes, of_file)

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape, np.float32) * np.float32(0.02)
        quantized = gguf.quants.quantize(values, stored)
        writer.add_tensor(f"{name}.weight", quantized, raw_dtype=stored)

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(dim, np.float32))

    add("token_embd", shape["vocab"], dim)
    add_norm("output_norm")
    for i in range(layers):
        add_norm(f"blk.{i}.attn_norm")
        add_norm(f"blk.{i}.ffn_norm")
        for name, out in (("q", dim), ("k", kv), ("v", kv), ("output", dim)):
            add(f"blk.{i}.attn_{name}", out, dim)
        add(f"blk.{i}.ffn_gate", ffn, dim)
        add(f"blk.{i}.ffn_up", ffn, dim)
        add(f"blk.{i}.ffn_down", dim, ffn)
    write_out(writer)


def bindings(folder: Path) -> Any:
    """Return the low-level bindings of an unpacked distribution, without the rest."""
    os.environ["LLAMA_CPP_LIB_PATH"] = str(folder / BUILT)
    package = ModuleType("llama_cpp")
    package.__path__ = [str(folder / "llama_cpp")]
    sys.modules["llama_cpp"] = package
    from llama_cpp import llama_cpp

    return llama_cpp


class Llama:
    """A model and a context; its cache is float16, as llama.cpp has it."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._library, self._threads = bindings(folder), threads
        self._silence = self._library.llama_log_callback(lambda *_: None)
        self._library.llama_log_set(self._silence, None)
        self._library.llama_backend_init()

    def load(self, path: str) -> None:
        """Map a model, and make a context with as much room as the others have.

        Raises:
            RuntimeError: either failed.
        """
        library = self._library
        model_params = library.llama_model_default_params()
        model_params.load_mode = MAP
        model = library.llama_model_load_from_file(path.encode(), model_params)
        params = library.llama_context_default_params()
        params.n_ctx = shape_of(path)["capacity"]
        params.n_threads = params.n_threads_batch = self._threads
        self._context = model and library.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp does not load {path}")

    def step(self, ids: Ids, position: int) -> None:
        """Append tokens at a position.

        Raises:
            RuntimeError: it failed.
        """
        library = self._library
        if position == 0:
            library.llama_memory_clear(library.llama_get_memory(self._context), False)
        tokens = (library.llama_token * ids.shape[1])(*ids[0].tolist())
        batch = library.llama_batch_get_one(tokens, len(tokens))
        status = library.llama_decode(self._context, batch)
        if status or not library.llama_get_logits(self._context):
            raise RuntimeError(f"llama_decode returns {status}")


def bench(options: argparse.Namespace) -> Figures:
    """Return what `llama-bench` measures; medians of its samples."""
    command = [options.folder / BUILT / "llama-bench", "-m", options.path]
    command += ["-t", options.threads, "-r", options.repeats, "-o", "json"]
    figures = {}
    prompts = ["-n", 0, "-p", ",".join(map(str, PROMPTS))]
    for length, test in zip(PROMPTS, said([*command, *prompts]), strict=True):
        seconds = statistics.median(test["samples_ns"]) / 1e9
        figures[f"prefill_{length}_s"] = seconds
    depths = ["-p", 0, "-n", options.steps, "-d", ",".join(map(str, DEPTHS))]
    for depth, test in zip(DEPTHS, said([*command, *depths]), strict=True):
        seconds = statistics.median(test["samples_ns"]) / 1e9
        figures[f"decode_{depth}_s"] = seconds / options.steps
    return figures


def said(command: list[object]) -> list[dict[str, Any]]:
    """Return what a command prints as JSON."""
    line = list(map(str, command))
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    tests: list[dict[str, Any]] = json.loads(done.stdout)
    return tests


def main() -> None:
    """Do one stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    builder = stages.add_parser("build")
    builder.add_argument("path", help="of the .gguf to write")
    builder.add_argument("--kind", choices=KINDS, default="Q8_0")
    for name in ("run", "bench"):
        runner = stages.add_parser(name)
        add_run_options(runner)
        runner.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    match options.stage:
        case "build":
            build(options.path, options.kind)
        case "run":
            measure_process(options, lambda n: Llama(options.folder, n))
        case _:
            sys.stdout.write(json.dumps(bench(options)) + "\n")


if __name__ == "__main__":
    main()
