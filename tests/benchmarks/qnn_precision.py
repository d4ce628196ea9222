"""How far `qnn_fp16` is from float32, beside what rounding to float16 alone makes.

`python tests/benchmarks/qnn_precision.py [--own-curves] [MODEL ...]`. Random
models of two layers, whose weights are scaled so that errors grow from layer to layer.
Three ways to compute:

    torch     PyTorch's operators, each result rounded to float16, as are the weights
    nodes     the nodes that kvc makes for the device, each result rounded likewise
    library   Qualcomm's library, whose emulator runs them

Of each the largest difference from float32 over the largest logit, and the root mean
square of all differences over that of all logits: of two tokens after each of some
prompts. With `--own-curves` softmax and activations are the library's own.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from hf_models import build
from library_here import is_here
from qnn_device import use_numpy_device

from kvc.compiler import CacheConfig, export_hf
from kvc.recipes import load_recipe
from kvc.runtime import load
from kvc.runtime.delegates.qnn.curves import HalfEmitter

MODELS = ("llama", "qwen2", "gemma2", "mpt", "gpt2", "opt", "phi", "falcon")
PROMPTS = tuple(np.arange(first, first + 17)[None] for first in range(3, 78, 9))
CHUNK = 16


class Rounding(TorchDispatchMode):
    """Rounds what each operator of PyTorch makes to what float16 has."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operator, and round."""
        return tree_map_only(torch.Tensor, rounded, func(*args, **(kwargs or {})))


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Round float32 to what float16 has; other tensors stay."""
    return tensor.half().float() if tensor.dtype == torch.float32 else tensor


def by_torch(model: nn.Module) -> np.ndarray:
    """Return logits [prompt, token, vocabulary] of float32."""
    tokens = torch.from_numpy(np.concatenate(PROMPTS))
    with torch.inference_mode():
        logits = model(tokens).logits[:, CHUNK - 1 :]
    return np.asarray(logits.numpy())


def by_torch_rounded(model: nn.Module) -> np.ndarray:
    """Return them of PyTorch's operators, each rounded."""
    with Rounding():
        return by_torch(model.half().float())


def by_kvc(path: Path) -> np.ndarray:
    """Return them of a bundle."""
    found = []
    with load(path) as program:
        for prompt in PROMPTS:
            with program.session() as session:
                first = session.prefill(prompt[:, :CHUNK])
                found.append([first[0], session.decode(prompt[:, CHUNK:])[0]])
    return np.array(found)


def measure(model: str, folder: Path) -> Mapping[str, np.ndarray]:
    """Return logits by each way."""
    shapes = {"seq": (1, CHUNK), "capacity": (64,)}
    recipe = replace(load_recipe("qnn_fp16"), buckets=shapes)
    cache, path = CacheConfig(max_length=64), folder / "m.kvc"
    export_hf(build(model), recipe=recipe, cache=cache, prefill_chunk=CHUNK).save(path)
    found = {
        "float32": by_torch(build(model)),
        "torch": by_torch_rounded(build(model)),
    }
    with pytest.MonkeyPatch.context() as patch:
        use_numpy_device(patch)
        found["nodes"] = by_kvc(path)
    if is_here("qnn"):
        found["library"] = by_kvc(path)
    return found


def off(found: np.ndarray, right: np.ndarray) -> str:
    """Return the two distances of one way."""
    apart = found.astype(np.float64) - right
    largest = float(np.abs(apart).max() / np.abs(right).max())
    root = float(np.sqrt((apart**2).mean() / (right**2).mean()))
    return f"{largest:.1e} {root:.1e}"


def of_the_library(
    emitter: HalfEmitter, kind: str, output: str, x: str, *more: str
) -> str:
    """Add the library's own softmax, sigmoid, SiLU or GELU."""
    shape = emitter.shapes[x]
    if kind.startswith("gelu"):
        how = "tanh" if kind == "gelu_tanh" else "none"
        return emitter.node("Gelu", (x,), output, shape, approximate=how)
    op = "Softmax" if kind == "softmax" else "Sigmoid"
    if kind != "silu" and not more:
        return emitter.node(op, (x,), output, shape)
    y = emitter.node(op, (x,), f"{output}_own", shape)
    return emitter.node("Mul", (y, *(more or (x,))), output, shape)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--own-curves", action="store_true")
    asked = parser.parse_args()
    if asked.own_curves:
        HalfEmitter.curve = of_the_library
    for model in asked.models:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(model, Path(folder))
        right = found.pop("float32")
        each = (f"{way} {off(logits, right)}" for way, logits in found.items())
        print(f"{model}: {', '.join(each)}", flush=True)


if __name__ == "__main__":
    main()
