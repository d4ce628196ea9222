"""Bits per byte of the demo model under each recipe, on held-out library modules.

`python tests/benchmarks/quality.py [--kilobytes 100]`. The text is the start of the
held-out set of `tools/dev/train_demo.py`, of the running interpreter's library, in
windows of 512 bytes; each recipe compiles the model's `forward`. With int8 caches a
window goes through the cache, in chunks of 64 bytes.
"""

import argparse
import math
import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.models import BUILTIN
from kvc.compiler.models.decoder import Block, Decoder
from kvc.recipes import Recipe, known_recipes, load_recipe
from kvc.runtime import load

WINDOW, CHUNK = 512, 64
TRAINER = Path(__file__).parents[2] / "tools/dev/train_demo.py"


def held_out_windows(kilobytes: int) -> np.ndarray:
    """Return int64 [windows, WINDOW] of the held-out text."""
    text = runpy.run_path(str(TRAINER))["read_library"]()[1]
    count = min(kilobytes * 1000, len(text)) // WINDOW
    return (
        np.frombuffer(text, np.uint8)[: count * WINDOW]
        .reshape(count, WINDOW)
        .astype(np.int64)
    )


def bits_per_byte(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean loss of logits [seq, vocab] against targets [seq], in bits."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_total = np.log(np.exp(shifted).sum(-1))
    chosen = np.take_along_axis(shifted, targets[:, None], 1)[:, 0]
    return float((log_total - chosen).mean() / math.log(2))


class Scores(nn.Module):
    """Logits of all positions by way of the cache, as `Decoder.prefill` writes it."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [1, seq, vocab] of tokens that follow what the cache holds."""
        decoder, seq = self.decoder, tokens.shape[1]
        start = decoder.position.clone()
        places = start + torch.arange(seq)
        cos, sin = decoder.cos[places], decoder.sin[places]
        x = decoder.embed(tokens)
        for layer in decoder.layers:
            assert isinstance(layer, Block)
            x = layer.cached(x, cos, sin, start)
        decoder.position.add_(seq)
        return decoder._logits(x)


def losses_by_cache(
    decoder: Decoder, recipe: Recipe, windows: np.ndarray, path: Path
) -> list[float]:
    """Return the bits per byte of each window, fed to a session in chunks."""
    example = torch.zeros(1, 8, dtype=torch.int64)
    seq = {"tokens": {1: Dim("seq", 1, CHUNK)}}
    method = Method("forward", args=(example,), dynamic=seq)
    compile_program(Scores(decoder), [method], recipe).save(path)
    losses = []
    with load(path) as program, program.session() as session:
        for window in windows:
            session.reset()
            fed = np.array_split(window[None, :-1], WINDOW // CHUNK, axis=1)
            logits = [session.call("forward", chunk)[0] for chunk in fed]
            losses.append(bits_per_byte(np.concatenate(logits), window[1:]))
    return losses


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kilobytes", type=int, default=100)
    windows = held_out_windows(parser.parse_args().kilobytes)
    spec = BUILTIN["demo"]()
    example = torch.zeros(1, 8, dtype=torch.int64)
    method = Method(
        "forward", args=(example,), dynamic={"tokens": {1: Dim("seq", 1, WINDOW)}}
    )
    sys.stdout.write(f"{windows.size} bytes, Python {sys.version.split()[0]}\n")
    for recipe in known_recipes():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "demo.kvc"
            compile_program(spec.model, [method], recipe).save(path)
            with load(path) as program:
                losses = [
                    bits_per_byte(program.call("forward", w[None, :-1])[0], w[1:])
                    for w in windows
                ]
            size = path.stat().st_size / 1e6
        sys.stdout.write(
            f"{recipe:14} {np.mean(losses):.4f} bits per byte, {size:.2f} MB\n"
        )
    for recipe in ("fp32", "xnnpack_q8"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "demo.kvc"
            asked = load_recipe(recipe, cache="int8")
            losses = losses_by_cache(spec.model, asked, windows, path)
        sys.stdout.write(
            f"{recipe:14} {np.mean(losses):.4f} bits per byte with int8 caches\n"
        )


if __name__ == "__main__":
    main()
