"""Decoders of several rows that check guesses: with caches, rings, and sums of tokens.

As `ragged_models`, with a method that returns the logits of every token. With `noise`,
a model mostly prefers the same tokens, so that it can guess.
"""

from pathlib import Path

import torch
from ragged_models import BATCH, VOCAB, Ragged, RaggedRings, ragged_methods
from torch import Tensor

from kvc.compiler import Dim, Method, StateSpec, compile_program

CAPACITY = Dim("capacity", 4, 64)


class Checked(Ragged):
    """A decoder with a cache; logits are clear, so that tokens are stable."""

    depth = 1

    def __init__(self, noise: float) -> None:
        super().__init__()
        with torch.no_grad():
            for parameter in self.parameters():
                change = torch.randn_like(parameter) * noise * parameter.std()
                parameter.add_(change)

    def prefill_all(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits [batch, seq, vocab] after each of tokens [batch, seq]."""
        start = self.position.clone()
        self.position.add_(lengths)
        return self.logits(tokens, start, lengths)

    def logits(self, tokens: Tensor, start: Tensor, row_lengths: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, start, row_lengths)
        return x @ self.embed.weight.T

    def run(self, tokens: Tensor, start: Tensor, row_lengths: Tensor) -> Tensor:
        every = self.logits(tokens, start, row_lengths)
        last = (row_lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, VOCAB)
        return every.gather(1, last)[:, 0]


class CheckedRings(Checked, RaggedRings):
    """A decoder with rings."""


class CheckedSums(Checked):
    """A decoder with a cache and a sum of tokens, which cannot be rewound."""

    def __init__(self, noise: float) -> None:
        super().__init__(noise)
        self.register_buffer("total", torch.zeros(1))
        angles = torch.arange(VOCAB) * 0.7
        self.register_buffer("angles", angles, persistent=False)

    def logits(self, tokens: Tensor, start: Tensor, row_lengths: Tensor) -> Tensor:
        given = torch.arange(tokens.shape[1]) < row_lengths[:, None]
        sums = self.total[:, None] + (tokens * given).cumsum(1)
        self.total.copy_(sums[:, -1])
        waves = 4 * torch.cos(sums[..., None] * self.angles)
        return super().logits(tokens, start, row_lengths) + waves


class Unclear(Checked):
    """A decoder whose logits after the last token of the vocabulary are NaN."""

    def logits(self, tokens: Tensor, start: Tensor, row_lengths: Tensor) -> Tensor:
        every = super().logits(tokens, start, row_lengths)
        return every + (tokens == VOCAB - 1)[..., None] * torch.nan


KINDS: dict[str, type[Checked]] = {
    "cache": Checked,
    "rings": CheckedRings,
    "sums": CheckedSums,
    "unclear": Unclear,
}


def write_checked(
    path: Path, kind: str, noise: float = 0.0, seq: int = 12, least: int = 1
) -> Path:
    """Write a bundle of a model of one to four rows.

    Args:
        path: the file to write.
        kind: a name in `KINDS`.
        noise: how much the weights differ.
        seq: the most tokens of a call.
        least: the fewest tokens of a call that checks.
    """
    prefill, decode = ragged_methods()
    sizes = {0: BATCH, 1: Dim("seq", 1, seq)}
    checked = {0: BATCH, 1: Dim("checked", least, seq)}
    rows = {"lengths": {0: BATCH}}
    methods = [
        Method("prefill", args=prefill.args, dynamic={"tokens": sizes, **rows},
               role="prefill"),
        Method("decode", args=decode.args, dynamic=decode.dynamic, role="decode"),
        Method("prefill_all", args=prefill.args, dynamic={"tokens": checked, **rows},
               role="prefill_all"),
    ]  # fmt: skip
    caches = StateSpec("layers.*", batch=BATCH)
    if kind != "rings":
        caches = StateSpec("layers.*", axis=2, capacity=CAPACITY, batch=BATCH)
    states = [caches, StateSpec("position", batch=BATCH)]
    states += [StateSpec("total", batch=BATCH)] * (kind == "sums")
    model = KINDS[kind](noise).eval()
    compile_program(model, methods, "cpu_fp32", states=states).save(path)
    return path
