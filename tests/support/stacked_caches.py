"""A decoder whose layers share one or two cache buffers, written in several ways."""

import torch
from held_buffers import ZERO, Buffers
from torch import Tensor, nn

from kvc.compiler import Dim, Method

LAYERS, HEADS, CAPACITY, DIM, VOCAB = 3, 2, 16, 4, 11
WIDTH = HEADS * DIM


class Stacked(Buffers, position=ZERO):
    """A decoder with the keys and values of all layers in one or two buffers.

    `how` says how the buffers are laid out and written.
    """

    def __init__(self, how: str, capacity: int = CAPACITY, batch: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        shape = (batch, HEADS, capacity, DIM)
        if how == "one buffer":
            self.register_buffer("kv", torch.zeros(LAYERS, 2, *shape))
        else:
            axis = 1 if how == "second axis" else 0
            for name in ("k", "v"):
                zeros = torch.zeros(LAYERS, *shape).movedim(0, axis).contiguous()
                self.register_buffer(name, zeros)

    def prefill(self, tokens: Tensor) -> Tensor:
        """Append tokens int64 [batch, seq]; return the last token's logits."""
        x, count = self.embed(tokens), tokens.shape[1]
        places = self.position + torch.arange(count)
        for layer, project in enumerate(self.qkv):
            parts = project(x).unflatten(2, (3, HEADS, DIM))
            q, *new = parts.permute(2, 0, 3, 1, 4).unbind(0)
            k, v = (
                self._written(layer, name, part, places)
                for name, part in zip("kv", new, strict=True)
            )
            seen = torch.arange(k.shape[2]) <= places[:, None]
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = x + y.transpose(1, 2).flatten(2)
        self.position.add_(count)
        return self.head(x[:, -1])

    def decode(self, token: Tensor) -> Tensor:
        """Append one token for each row, int64 [batch, 1]; return its logits."""
        return self.prefill(token)

    def forget(self) -> None:
        """Zero the caches and the position, as a method of the model."""
        for name, buffer in self.named_buffers():
            if name != "position":
                buffer.zero_()
        self.position.zero_()

    def peek(self) -> Tensor:
        return (self.kv[:, 0] if self.how == "one buffer" else self.k) * 1.0

    def _written(self, layer: int, name: str, new: Tensor, places: Tensor) -> Tensor:
        if self.how == "one buffer":
            cache = self.kv[layer, "kv".index(name)]
        elif self.how == "second axis":
            cache = getattr(self, name)[:, layer]
        else:
            cache = getattr(self, name)[layer - LAYERS * (self.how == "from the back")]
        match self.how:
            case "index_put":
                getattr(self, name)[layer, :, :, places] = new
            case "slice of one":
                row = getattr(self, name)[layer : layer + 1]
                row.index_copy_(3, places, new[None])
            case "cache_update":
                start = self.position.expand(new.shape[0])
                cache.copy_(torch.ops.kvc.cache_update(cache, new, start))
            case "scatter":
                cache.scatter_(2, places[None, None, :, None].expand(new.shape), new)
            case _:
                cache.index_copy_(2, places, new)
        return cache


WAYS = ("index_copy", "index_put", "slice of one", "cache_update", "one buffer")
WAYS += ("second axis", "from the back")


def stacked_methods(*more: str, batch: int = 1) -> list[Method]:
    """Return `prefill`, `decode`, and the methods `more` without arguments."""
    seq = Dim("seq", 1, CAPACITY)
    prompt = torch.zeros(batch, 5, dtype=torch.int64)
    return [
        Method("prefill", (prompt,), dynamic={"tokens": {1: seq}}, role="prefill"),
        Method("decode", (prompt[:, :1],), role="decode"),
        *(Method(name, ()) for name in more),
    ]
