"""ExecuTorch's side of `xnnpack.py`: its own export of a llama, its own runtime.

Needs `pip install torch==2.13.0 executorch==1.5.1 torchao==0.18.0`; kvc is not
imported. `build` writes a `.pte` of model A's shape with random weights: linear layers
in `8da8w` (int8 weights per output channel, activations quantized per row as they
come) or float32, given to XNNPACK; attention and cache by ExecuTorch's own op. The
command line of its exporter does not know `8da8w`, its quantizer does: the check is
taken out of the way. So is work that is the same for each of the 211 partitions, or
that nobody reads: `_quicken`. `run` measures as `xnnpack_measure.py` says.
"""

import argparse
import functools
import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from xnnpack_measure import SHAPES, Ids, add_run_options, measure_process

SHAPE = SHAPES["a"]
RECURSION = 8192  # the exporter's passes recurse once for each node


def checkpoint(folder: Path, layers: int) -> tuple[Path, Path]:
    """Write random weights under Meta's names, and the sizes as JSON."""
    import torch

    dim, ffn = SHAPE["dim"], SHAPE["ffn"]
    kv = dim // SHAPE["heads"] * SHAPE["kv_heads"]
    generator = torch.Generator().manual_seed(0)

    def normal(out: int, width: int) -> torch.Tensor:
        return torch.randn(out, width, generator=generator) * width**-0.5

    table = normal(SHAPE["vocab"], dim)
    weights = {"tok_embeddings.weight": table, "output.weight": table}
    weights["norm.weight"] = torch.ones(dim)
    for i in range(layers):
        for name, out, width in (
            ("attention.wq", dim, dim),
            ("attention.wk", kv, dim),
            ("attention.wv", kv, dim),
            ("attention.wo", dim, dim),
            ("feed_forward.w1", ffn, dim),
            ("feed_forward.w2", dim, ffn),
            ("feed_forward.w3", ffn, dim),
        ):
            weights[f"layers.{i}.{name}.weight"] = normal(out, width)
        for name in ("attention_norm", "ffn_norm"):
            weights[f"layers.{i}.{name}.weight"] = torch.ones(dim)
    torch.save(weights, folder / "a.pth")
    sizes = {
        "dim": dim,
        "n_layers": layers,
        "n_heads": SHAPE["heads"],
        "n_kv_heads": SHAPE["kv_heads"],
        "hidden_dim": ffn,
        "vocab_size": SHAPE["vocab"],
        "norm_eps": 1e-5,
        "rope_theta": 1e5,
        "use_scaled_rope": False,
        "multiple_of": 256,
    }
    (folder / "a.json").write_text(json.dumps(sizes))
    return folder / "a.pth", folder / "a.json"


def _quicken() -> None:
    """Leave out what the export repeats for each partition, and where nodes came from.

    Each partition is decomposed anew, which registers kernels of some 500 ops for
    twelve kinds of device and looks for new ops in C++; each pass over each partition
    copies the history of every node, which grows with every pass.
    """
    import torch._export.utils as utils
    import torch.export.exported_program as exporter
    import torch.fx.traceback as traceback

    for keys in (
        exporter._AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE,
        exporter._BACKEND_KEYS_TO_OVERRIDE,
    ):
        here = ("CPU", "Meta", "AutogradCPU", "AutogradMeta")
        keys[:] = [key for key in keys if key.name in here]
    utils._materialize_cpp_cia_ops = functools.cache(utils._materialize_cpp_cia_ops)
    made = traceback.NodeSource.__init__

    def forget(self: Any, node: Any, *arguments: Any, **named: Any) -> None:
        if node is not None:
            node.meta.pop("from_node", None)
        made(self, node, *arguments, **named)

    traceback.NodeSource.__init__ = forget


def build(options: argparse.Namespace) -> None:
    """Export."""
    from executorch.examples.models.llama import export_llama_lib as exporter
    from executorch.extension.llm.export.config.llm_config import LlmConfig

    sys.setrecursionlimit(RECURSION)
    _quicken()
    gc.disable()  # what it makes, it keeps
    exporter._qmode_type = str
    with tempfile.TemporaryDirectory() as name:
        weights, sizes = checkpoint(Path(name), options.layers)
        capacity = str(SHAPE["capacity"])
        line = ["--model", "llama3", "-c", str(weights), "-p", str(sizes), "-kv"]
        line += ["-X", "-d", "fp32", "--use_sdpa_with_kv_cache", "-n", options.path]
        line += ["--max_seq_length", capacity, "--max_context_length", capacity]
        if options.scheme == "8da8w":
            line += ["-qmode", "8da8w", "-G", "0", "-E", "8,0"]
        if options.extended:
            line.append("--xnnpack-extended-ops")
        config = LlmConfig.from_args(exporter.build_args_parser().parse_args(line))
        config.quantization.use_hqq = False  # scales by the greatest weight, as kvc's
        exporter.export_llama(config)


class ExecuTorch:
    """A `.pte` in ExecuTorch's runtime."""

    def __init__(self, threads: int) -> None:
        import executorch.extension.llm.custom_ops.custom_ops
        import executorch.kernels.quantized  # noqa: F401
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        portable_lib._unsafe_reset_threadpool(threads)
        self._runtime = Runtime.get()
        self._method: Any = None

    def load(self, path: str) -> None:
        """Load the program and its method."""
        self._program = self._runtime.load_program(path)
        self._method = self._program.load_method("forward")

    def step(self, ids: Ids, position: int) -> None:
        """Append tokens at a position."""
        import torch

        self._method.execute((torch.from_numpy(ids), torch.tensor([position])))


def main() -> None:
    """Do one stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    builder = stages.add_parser("build")
    builder.add_argument("path", help="of the .pte to write")
    builder.add_argument("--scheme", choices=("8da8w", "fp32"), default="8da8w")
    builder.add_argument("--extended", action="store_true", help="all of its ops")
    builder.add_argument("--layers", type=int, default=SHAPE["layers"])
    add_run_options(stages.add_parser("run"))
    options = parser.parse_args()
    if options.stage == "build":
        build(options)
        return
    measure_process(options, ExecuTorch)


if __name__ == "__main__":
    main()
