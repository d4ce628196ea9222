"""ExecuTorch's side of `data.py`: one step a process, figures as one JSON line.

Needs `pip install torch==2.13.0 executorch==1.5.1`, which brings safetensors; kvc is
not imported. `export` makes a `.pte` from a checkpoint that `data.py` wrote: the same
decoder, the same weights, its caches as buffers that are written at a position and,
where there are two methods, shared between them. `portable` leaves all to
ExecuTorch's own kernels; `xnnpack` gives XNNPACK what its partitioner takes.
"""

import argparse
import json
import logging
import statistics
import sys
import time
from pathlib import Path

import data_process
import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK = 8  # tokens of a prefill: fixed, since the caches' writes are


class Block(nn.Module):
    """A layer over caches [1, kv_heads, capacity, head_dim]."""

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, shape: dict[str, int]) -> None:
        super().__init__()
        dim, ffn, self.heads = shape["dim"], shape["ffn"], shape["heads"]
        width = dim // self.heads
        kv_width = shape["kv_heads"] * width
        self.attn_norm, self.ffn_norm = nn.RMSNorm(dim, 1e-5), nn.RMSNorm(dim, 1e-5)
        self.attn, self.ffn = nn.Module(), nn.Module()
        for name, out in (("q", dim), ("k", kv_width), ("v", kv_width), ("o", dim)):
            setattr(self.attn, name, nn.Linear(dim, out, bias=False))
        self.ffn.gate = nn.Linear(dim, ffn, bias=False)
        self.ffn.up = nn.Linear(dim, ffn, bias=False)
        self.ffn.down = nn.Linear(ffn, dim, bias=False)
        for name in ("k_cache", "v_cache"):
            cache = torch.zeros(1, shape["kv_heads"], shape["capacity"], width)
            self.register_buffer(name, cache, persistent=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, seen: Tensor
    ) -> Tensor:
        """Append x [1, seq, dim] at `places` and attend to what is `seen`."""
        y, seq = self.attn_norm(x), x.shape[1]
        split = [
            getattr(self.attn, name)(y).view(1, seq, -1, self.k_cache.shape[3])
            for name in ("q", "k", "v")
        ]
        q, k, v = (part.transpose(1, 2) for part in split)
        self.k_cache.index_copy_(2, places, rotate(k, cos, sin))
        self.v_cache.index_copy_(2, places, v)
        groups = self.heads // self.k_cache.shape[1]
        k, v = (
            cache.repeat_interleave(groups, dim=1)
            for cache in (self.k_cache, self.v_cache)
        )
        y = functional.scaled_dot_product_attention(rotate(q, cos, sin), k, v, seen)
        x = x + self.attn.o(y.transpose(1, 2).reshape(1, seq, -1))
        y = self.ffn_norm(x)
        gated: Tensor = functional.silu(self.ffn.gate(y)) * self.ffn.up(y)
        return x + self.ffn.down(gated)


class Decoder(nn.Module):
    """`kvc.compiler.models.decoder.Decoder`, its position passed in."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: dict[str, int]) -> None:
        super().__init__()
        self.capacity = shape["capacity"]
        self.embed = nn.Embedding(shape["vocab"], shape["dim"])
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape["layers"]))
        self.norm = nn.RMSNorm(shape["dim"], 1e-5)
        width = shape["dim"] // shape["heads"]
        turns = 1e4 ** -(torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(self.capacity).float(), turns)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """Append tokens int64 [1, seq]; return the last one's logits [1, vocab]."""
        places = position + torch.arange(tokens.shape[1])
        seen = torch.arange(self.capacity)[None] <= places[:, None]
        cos, sin = self.cos[places], self.sin[places]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin, places, seen)
        return functional.linear(self.norm(x[:, -1]), self.embed.weight)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [1, heads, seq, head_dim] by cos, sin [seq, head_dim / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def sample(method: str) -> tuple[Tensor, Tensor]:
    """Return inputs of a method."""
    seq = 1 if method == "decode" else CHUNK
    return torch.ones(1, seq, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)


def export(options: argparse.Namespace) -> dict[str, float]:
    """Write a `.pte` with the methods, and beside it what this says; or read that."""
    said = Path(f"{options.path}.json")
    if not said.exists():
        said.write_text(json.dumps(export_anew(options)))
    figures: dict[str, float] = json.loads(said.read_text())
    return figures


def export_anew(options: argparse.Namespace) -> dict[str, float]:
    """Write a `.pte` with the methods."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import (
        EdgeCompileConfig,
        ExecutorchBackendConfig,
        to_edge_transform_and_lower,
    )
    from executorch.exir.passes import MemoryPlanningPass
    from safetensors.torch import load_file

    begin = time.perf_counter()
    model = Decoder(json.loads(options.shape)).eval()
    model.load_state_dict(load_file(options.checkpoint))
    methods = options.methods.split(",")
    with torch.no_grad():
        exported = {
            name: torch.export.export(model, sample(name), strict=False)
            for name in methods
        }
    partitioner = [XnnpackPartitioner()] if options.backend == "xnnpack" else []
    # Left to itself it transposes every weight at every call: 6 times slower.
    keep = EdgeCompileConfig(preserve_ops=[torch.ops.aten.linear.default])
    edge = to_edge_transform_and_lower(
        exported, partitioner=partitioner, compile_config=None if partitioner else keep
    )
    planning = MemoryPlanningPass(share_mutable_buffers=len(methods) > 1)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    program = edge.to_executorch(config)
    with Path(options.path).open("wb") as file:
        program.write_to_file(file)
    nbytes = Path(options.path).stat().st_size
    if nbytes < Path(options.checkpoint).stat().st_size:
        raise ValueError(f"{options.path} has {nbytes} bytes: the weights are missing")
    figures = {"export_s": time.perf_counter() - begin, "file_nbytes": nbytes}
    return figures | {"pt2_nbytes": save_pt2(exported, options.path)}


def save_pt2(exported: dict[str, torch.export.ExportedProgram], path: str) -> int:
    """Return the bytes of the same programs as `.pt2` files, one a method."""
    nbytes = 0
    for name, program in exported.items():
        file = Path(f"{path}.{name}.pt2")
        torch.export.save(program, file)
        nbytes += file.stat().st_size
        file.unlink()
    return nbytes


def warm_up(path: str) -> None:
    """Load and run a small program, so that libraries are there before counting."""
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime

    portable_lib._unsafe_reset_threadpool(torch.get_num_threads())  # as kvc has
    program = Runtime.get().load_program(path)
    for name in sorted(program.method_names):
        program.load_method(name).execute(sample(name))


def open_once(options: argparse.Namespace) -> dict[str, float]:
    """Time the two stages of loading, and the first result, and what they map."""
    from executorch.runtime import Runtime

    warm_up(options.small)
    before = data_process.residency()
    data_process.prepare_cache(options.path, options.cold)
    begin = time.perf_counter()
    program = Runtime.get().load_program(options.path)
    opened = time.perf_counter()
    pulled = data_process.cached_nbytes(options.path) if options.cold else 0
    paused = time.perf_counter()
    method = program.load_method("decode")
    ready = time.perf_counter()
    loaded = data_process.residency()
    resumed = time.perf_counter()
    method.execute(sample("decode"))
    first = time.perf_counter()
    return {
        "open_s": opened - begin,
        "pulled_nbytes": pulled,
        "method_s": ready - paused + opened - begin,
        "first_s": first - resumed + ready - paused + opened - begin,
        **data_process.grown("loaded", before, loaded),
    }


def run(options: argparse.Namespace) -> dict[str, float]:
    """Load, run method after method, and count memory after each; time decoding."""
    from executorch.runtime import Runtime

    warm_up(options.small)
    data_process.prepare_cache(options.path, cold=False)
    begin, start = data_process.residency(), time.perf_counter()
    program = Runtime.get().load_program(options.path)
    figures = {"load_s": time.perf_counter() - start}
    figures |= data_process.grown("loaded", begin, data_process.residency())
    methods = {}
    for name in options.methods.split(","):
        methods[name] = program.load_method(name)
        methods[name].execute(sample(name))
        figures.setdefault("first_s", time.perf_counter() - start)
        figures |= data_process.grown(name, begin, data_process.residency())
    figures["decode_s"] = statistics.median(
        step(methods["decode"], 16 + i) for i in range(options.steps)
    )
    figures |= data_process.grown("decoded", begin, data_process.residency())
    del program, methods
    return figures | data_process.grown("closed", begin, data_process.residency())


def step(method: object, position: int) -> float:
    """Return the seconds of one token."""
    tokens, _ = sample("decode")
    begin = time.perf_counter()
    method.execute((tokens, torch.tensor([position])))  # type: ignore[attr-defined]
    return time.perf_counter() - begin


def main() -> None:
    """Do one step and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=("export", "open", "run"))
    parser.add_argument("--path", required=True)
    parser.add_argument("--checkpoint")
    parser.add_argument("--shape")
    parser.add_argument("--backend", choices=("portable", "xnnpack"))
    parser.add_argument("--methods", default="decode")
    parser.add_argument("--small", help="a small .pte to warm up with")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    stages = {"export": export, "open": open_once, "run": run}
    sys.stdout.write(json.dumps(stages[options.stage](options)) + "\n")


if __name__ == "__main__":
    main()
