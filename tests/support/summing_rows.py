"""A model whose next token depends on every token that the row has had.

Its cache holds the tokens. The likeliest next token is 4 times their sum plus their
number, modulo the vocabulary. So a token that is lost, doubled, or taken from another
row, changes all following tokens. Sums are of small whole numbers, so that they are
exact: a row makes the same tokens alone and in a batch, also when tokens are drawn at
random.
"""

import torch
from held_buffers import ZERO, Buffers
from torch import Tensor, nn

from kvc.compiler import Dim, Method, StateSpec, compile_program

VOCAB, SLOTS, CHUNK, ROWS = 32, 24, 8, 4
BATCH = Dim("batch", 1, ROWS)


class SummingRows(Buffers, kept=torch.zeros(1, 1, SLOTS, 1), position=ZERO):
    """The model; `prefill` and `prefill_4` take (tokens, lengths)."""

    def __init__(self) -> None:
        super().__init__()
        # The runtime learns from the table which tokens there are.
        numbers = torch.arange(VOCAB * 1.0)[:, None]
        self.numbers = nn.Embedding.from_pretrained(numbers)

    def prefill(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.run(tokens, lengths)

    prefill_4 = prefill

    def decode(self, token: Tensor, active: Tensor) -> Tensor:
        return self.run(token, active.to(torch.int64))

    def run(self, tokens: Tensor, row_lengths: Tensor) -> Tensor:
        padding = torch.arange(tokens.shape[1]) >= row_lengths[:, None]
        given = self.numbers(tokens.masked_fill(padding, 0))[:, None]
        start = self.position.clone()
        held = torch.ops.kvc.cache_update(
            self.kept, given, start, row_lengths=row_lengths
        )
        self.kept.copy_(held)
        length = start + row_lengths
        mean = torch.ops.kvc.attention(
            given * 0, self.kept, self.kept, length, scale=1.0, row_lengths=row_lengths
        )
        self.position.add_(row_lengths)
        last = (row_lengths - 1).clamp(min=0)[:, None]
        mean = mean[:, 0, :, 0].gather(1, last)
        total = (mean * length[:, None]).round() * 4 + length[:, None]
        best = total - (total / VOCAB).floor() * VOCAB
        return -(torch.arange(VOCAB) - best).abs() / 4


def likeliest(tokens: list[int]) -> int:
    """Return the likeliest token after these tokens."""
    return (4 * sum(tokens) + len(tokens)) % VOCAB


def summing_rows(path: str) -> None:
    """Compile the model, and write its bundle to a path."""
    tokens = torch.ones(2, 4, dtype=torch.int64)
    seq = {0: BATCH, 1: Dim("seq", 1, CHUNK)}
    methods = [
        _method("prefill", "tokens", tokens, seq, "lengths", "prefill"),
        _method("prefill_4", "tokens", tokens, {0: BATCH}, "lengths", "prefill"),
        _method("decode", "token", tokens[:, :1], {0: BATCH}, "active", "decode"),
    ]
    states = [
        StateSpec("kept", axis=2, capacity=Dim("capacity", 4, SLOTS), batch=BATCH),
        StateSpec("position", batch=BATCH),
    ]
    compile_program(SummingRows(), methods, "fp32", states=states).save(path)


def _method(name, given, tokens, dims, row_lengths, role) -> Method:
    counted = torch.ones(2, dtype=torch.int64)
    args = (tokens, counted > 0 if role == "decode" else counted)
    sizes = {given: dims, row_lengths: {0: BATCH}}
    return Method(name, args=args, dynamic=sizes, role=role)
