"""A ragged batch, measured beside its rows one after another: speed and memory.

`python tests/benchmarks/ragged.py [--recipe xnnpack_q8] [--layers 30] [--decode 64]`.
The model has the shape of model A and random weights. Four prompts of different lengths
are read in one padded call and continued together; then each of them alone, in a
session of one row of the same bundle. Only tokens that count are counted.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kvc.compiler import Dim, Method, StateSpec, compile_program
from kvc.compiler.models.decoder import Block, Decoder, DecoderConfig
from kvc.runtime import Program, Session, load

VOCAB, CAPACITY = 49152, 2048
LENGTHS = (512, 384, 200, 40)
BATCH, SEQ = Dim("batch", 1, len(LENGTHS)), Dim("seq", 1, max(LENGTHS))


class RaggedDecoder(Decoder):
    """The built-in decoder, each row of which brings as many tokens as it has."""

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Append the first `lengths[row]` of tokens int64 [batch, seq] to each row."""
        return self._append_rows(tokens, lengths)

    def decode(self, token: Tensor, active: Tensor) -> Tensor:
        """Append token int64 [batch, 1] to the rows that are active, bool [batch]."""
        return self._append_rows(token, active.to(torch.int64))

    def _append_rows(self, tokens: Tensor, counts: Tensor) -> Tensor:
        start = self.position.clone()
        places = start[:, None] + torch.arange(tokens.shape[1])
        places = places.clamp(max=CAPACITY - 1)  # of the padding
        turns = self.cos[places][:, None], self.sin[places][:, None]
        x = self.embed(tokens)
        for block in self.layers:
            assert isinstance(block, Block)
            x = append_block(block, x, turns, start, counts)
        self.position.add_(counts)
        last = (counts - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
        return self._logits(x.gather(1, last)[:, 0])


def append_block(
    block: Block, x: Tensor, turns: tuple[Tensor, Tensor], start: Tensor, counts: Tensor
) -> Tensor:
    """Apply a layer to x [batch, seq, dim], of which `counts[row]` tokens count."""
    ops, held = torch.ops.kvc, block.attn
    q, k, v = held._project(block.attn_norm(x), *turns)
    held.k_cache.copy_(ops.cache_update(held.k_cache, k, start, row_lengths=counts))
    held.v_cache.copy_(ops.cache_update(held.v_cache, v, start, row_lengths=counts))
    y = ops.attention(q, held.k_cache, held.v_cache, start + counts, row_lengths=counts)
    x = x + held._merge(y)
    result: Tensor = x + block.ffn(block.ffn_norm(x))
    return result


def compile_ragged(layers: int, recipe: str, path: Path) -> None:
    """Compile the model; rows and capacity are chosen when a session opens."""
    torch.manual_seed(0)
    config = DecoderConfig(
        VOCAB, 576, layers, heads=9, kv_heads=3, ffn=1536, capacity=CAPACITY
    )
    tokens = torch.ones(2, 8, dtype=torch.int64)
    rows = {0: BATCH}
    methods = [
        Method(
            "prefill",
            args=(tokens, tokens[:, 0] * 8),
            dynamic={"tokens": {0: BATCH, 1: SEQ}, "lengths": rows},
        ),
        Method(
            "decode",
            args=(tokens[:, :1], tokens[:, 0] == 1),
            dynamic={"token": rows, "active": rows},
        ),
    ]
    capacity = Dim("capacity", 16, CAPACITY)
    states = [
        StateSpec("layers.*.attn.?_cache", axis=2, capacity=capacity, batch=BATCH),
        StateSpec("position", batch=BATCH),
    ]
    model = RaggedDecoder(config).eval()
    compile_program(model, methods, recipe, states=states).save(path)


class Run:
    """Seconds of prefill and decode, and bytes of states, of some sessions."""

    def __init__(self) -> None:
        self.prefill = self.decode = 0.0
        self.nbytes = 0

    def add(self, session: Session, lengths: Sequence[int], steps: int) -> None:
        """Read prompts of some lengths, one a row, and decode that many tokens."""
        dice = np.random.default_rng(0)
        tokens = dice.integers(0, VOCAB, (len(lengths), max(lengths)))
        begin = time.perf_counter()
        logits = session.call("prefill", tokens, np.array(lengths))
        self.prefill += time.perf_counter() - begin
        begin = time.perf_counter()
        for _ in range(steps):
            assert isinstance(logits, np.ndarray)
            logits = session.call("decode", logits.argmax(-1)[:, None])
        self.decode += time.perf_counter() - begin
        self.nbytes += session.residency().own or 0


def measure(program: Program, steps: int) -> tuple[Run, Run]:
    """Return the runs of the batch, and of its rows one after another."""
    together, apart = Run(), Run()
    with program.session(batch=len(LENGTHS)) as session:
        together.add(session, LENGTHS, steps)
    for length in LENGTHS:
        with program.session(batch=1) as session:
            apart.add(session, [length], steps)
    return together, apart


def main() -> None:
    """Compile, warm up, measure in turn, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="xnnpack_q8")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ragged.kvc"
        compile_ragged(chosen.layers, chosen.recipe, path)
        with load(path) as program:
            measure(program, 2)
            rounds = [measure(program, chosen.decode) for _ in range(chosen.rounds)]
    show("", "prefill t/s", "decode t/s", "states MB")
    names = (f"a batch of {len(LENGTHS)}", "one after another")
    for name, runs in zip(names, zip(*rounds, strict=True), strict=True):
        prefill = statistics.median(sum(LENGTHS) / run.prefill for run in runs)
        tokens = len(LENGTHS) * chosen.decode
        decode = statistics.median(tokens / run.decode for run in runs)
        show(name, f"{prefill:.0f}", f"{decode:.1f}", f"{runs[-1].nbytes / 1e6:.1f}")


def show(name: str, *numbers: str) -> None:
    """Print a line of a table."""
    sys.stdout.write(f"{name:<20}{''.join(f'{number:>14}' for number in numbers)}\n")


if __name__ == "__main__":
    main()
