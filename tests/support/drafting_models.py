"""A tiny decoder, and models that draft its tokens: well, badly, or not at all."""

from pathlib import Path

import torch
from held_buffers import ZERO, Buffers
from torch import Tensor, nn

from kvc.compiler import Dim, Method, compile_program
from kvc.compiler.models.decoder import Decoder, DecoderConfig
from kvc.compiler.models.demo import decoder_caches, decoder_methods

VOCAB, CAPACITY, CHUNK = 32, 64, 8
CONFIG = DecoderConfig(
    vocab=VOCAB, dim=32, layers=1, heads=2, kv_heads=1, ffn=48, capacity=CAPACITY
)
METADATA = {"tokenizer": "bytes"}


def decoder(noise: float = 0.0) -> Decoder:
    """Return a decoder whose most likely tokens are clear, so that they are stable.

    With `noise`, its weights are changed so that it mostly prefers the same tokens.
    """
    torch.manual_seed(3)
    model = Decoder(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(3)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise * parameter.std())
    return model


def write_decoder(path: Path, noise: float = 0.0, all_logits: bool = True) -> Path:
    """Write a bundle of a decoder; its sessions choose a capacity from 16 to 64."""
    methods = decoder_methods(CONFIG, CHUNK, all_logits)
    states, model = [decoder_caches(CONFIG)], decoder(noise)
    compile_program(model, methods, "fp32", states=states, metadata=METADATA).save(path)
    return path


class Table(Buffers, position=ZERO):
    """Model whose logits depend on the last token alone; it counts tokens."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(rows)

    def prefill(self, tokens: Tensor) -> Tensor:
        """Return the logits [1, vocab] after the last of tokens [1, seq]."""
        return self.prefill_all(tokens)[:, -1]

    def prefill_all(self, tokens: Tensor) -> Tensor:
        """Return the logits [1, seq, vocab] after each of tokens [1, seq]."""
        self.position.add_(tokens.shape[1])
        return nn.functional.embedding(tokens, self.rows)


class Recurrent(Table, total=torch.zeros(1)):
    """Model like `Table`, with a sum of tokens, which cannot be rewound."""

    def prefill_all(self, tokens: Tensor) -> Tensor:
        """Return the logits [1, seq, vocab] after each of tokens [1, seq]."""
        self.total.mul_(0.5).add_(tokens.sum())
        return super().prefill_all(tokens) + self.total


class Summing(Table, total=torch.zeros(1)):
    """Model whose logits depend on the last token and on the sum of all tokens.

    The sum is a state that cannot be rewound.
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__(rows)
        self.register_buffer("angles", torch.arange(rows.shape[1]) * 0.7)

    def prefill_all(self, tokens: Tensor) -> Tensor:
        """Return the logits [1, seq, vocab] after each of tokens [1, seq]."""
        sums = self.total + tokens.cumsum(1)
        self.total.copy_(sums[:, -1])
        waves = 4 * torch.cos(sums[..., None] * self.angles)
        return super().prefill_all(tokens) + waves


class CountingChecks(Table, checks=torch.zeros(1)):
    """Model `Table` with a state that only the method `check` writes."""

    def check(self, tokens: Tensor) -> Tensor:
        """Return the logits [1, seq, vocab] after each of tokens [1, seq]."""
        self.checks.add_(1)
        return self.prefill_all(tokens)


def write_table(path: Path, model: Table, least: int = 1, **options: object) -> Path:
    """Write a bundle of a `Table`; its method `check` takes at least `least` tokens."""
    tokens = torch.zeros(1, least + 1, dtype=torch.int64)
    some = {"tokens": {1: Dim("seq", 1, CHUNK)}}
    checks = {"tokens": {1: Dim("checked", least, least + 8)}}
    methods = [
        Method("read", args=(tokens,), dynamic=some, role="prefill"),
        Method("say", args=(tokens[:, :1],), role="decode"),
        Method("check", args=(tokens,), dynamic=checks, role="prefill_all"),
    ]
    model.read = model.say = model.prefill
    if not isinstance(model, CountingChecks):
        model.check = model.prefill_all
    settings = {"recipe": "fp32", "metadata": METADATA, **options}
    compile_program(model, methods, **settings).save(path)
    return path
