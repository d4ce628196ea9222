"""A decoder-only transformer with its cache in buffers, ready to compile.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied embedding: the
Llama block. `forward` is for training and reference; `prefill`, `decode` and
`prefill_all` are the methods that kvc compiles. They write the same cache and advance
`position`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The sizes of a `Decoder`.

    Attributes:
        vocab: number of tokens.
        dim: width of the residual stream.
        layers: number of blocks.
        heads, kv_heads: numbers of query heads and of key/value heads; `heads` is a
            multiple of `kv_heads`.
        ffn: hidden width of the feed-forward block.
        capacity: number of positions that the cache holds.
        rope_base: base of the rotary wavelengths.
        eps: epsilon of RMSNorm.
    """

    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    capacity: int
    rope_base: float = 10000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.heads


class Attention(nn.Module):
    """Grouped-query attention over a cache [1, kv_heads, capacity, head_dim]."""

    k_cache: Tensor
    v_cache: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        kv_width = config.kv_heads * config.head_dim
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.q = nn.Linear(config.dim, config.dim, bias=False)
        self.k = nn.Linear(config.dim, kv_width, bias=False)
        self.v = nn.Linear(config.dim, kv_width, bias=False)
        self.o = nn.Linear(config.dim, config.dim, bias=False)
        cache = (1, config.kv_heads, config.capacity, config.head_dim)
        self.register_buffer("k_cache", torch.zeros(cache), persistent=False)
        self.register_buffer("v_cache", torch.zeros(cache), persistent=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend within x [batch, seq, dim] alone, without the cache."""
        q, k, v = self._project(x, cos, sin)
        y = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        )
        return self._merge(y)

    def cached(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor) -> Tensor:
        """Append x [1, seq, dim] to the cache at `position`; attend to the cache."""
        q, k, v = self._project(x, cos, sin)
        self.k_cache.copy_(torch.ops.kvc.cache_update(self.k_cache, k, position))
        self.v_cache.copy_(torch.ops.kvc.cache_update(self.v_cache, v, position))
        y = torch.ops.kvc.attention(
            q, self.k_cache, self.v_cache, position + x.shape[1]
        )
        return self._merge(y)

    def _project(
        self, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        q = rotate(self._split(self.q(x), self.heads), cos, sin)
        k = rotate(self._split(self.k(x), self.kv_heads), cos, sin)
        return q, k, self._split(self.v(x), self.kv_heads)

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

    def _merge(self, y: Tensor) -> Tensor:
        merged: Tensor = self.o(y.transpose(1, 2).reshape(y.shape[0], y.shape[2], -1))
        return merged


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.ffn, bias=False)
        self.up = nn.Linear(config.dim, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [batch, seq, dim] to the same shape."""
        y: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return y


class Block(nn.Module):
    """One pre-norm layer: attention, then feed-forward."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(config.dim, config.eps)
        self.attn = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, config.eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply the layer without cache to x [batch, seq, dim]."""
        x = x + self.attn(self.attn_norm(x), cos, sin)
        y: Tensor = x + self.ffn(self.ffn_norm(x))
        return y

    def cached(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor) -> Tensor:
        """Apply the layer to x [1, seq, dim], which follows the tokens in the cache."""
        x = x + self.attn.cached(self.attn_norm(x), cos, sin, position)
        y: Tensor = x + self.ffn(self.ffn_norm(x))
        return y


class Decoder(nn.Module):
    """The whole model; `position` int64 [1] counts the tokens in the cache."""

    position: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.dim, config.eps)
        cos, sin = rotary_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        position = torch.zeros(1, dtype=torch.int64)
        self.register_buffer("position", position, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits float32 [batch, seq, vocab] of tokens int64 [batch, seq]."""
        seq = tokens.shape[1]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:seq], self.sin[:seq])
        return self._logits(x)

    def prefill(self, tokens: Tensor) -> Tensor:
        """Append tokens int64 [1, seq]; return logits [1, vocab] of the last token."""
        return self._logits(self._append(tokens)[:, -1])

    def prefill_all(self, tokens: Tensor) -> Tensor:
        """Append tokens int64 [1, seq]; return all logits, float32 [1, seq, vocab]."""
        return self._logits(self._append(tokens))

    def decode(self, token: Tensor) -> Tensor:
        """Append one token, int64 [1, 1]; return its logits, float32 [1, vocab]."""
        return self._logits(self._append(token)[:, -1])

    def _append(self, tokens: Tensor) -> Tensor:
        seq = tokens.shape[1]
        start = self.position.clone()
        places = start + torch.arange(seq)
        cos, sin = self.cos[places], self.sin[places]
        x: Tensor = self.embed(tokens)
        for layer in self.layers:
            assert isinstance(layer, Block)
            x = layer.cached(x, cos, sin, start)
        self.position.add_(seq)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        return functional.linear(self.norm(x), self.embed.weight)


def rotary_tables(config: DecoderConfig) -> tuple[Tensor, Tensor]:
    """Return cos and sin, float32 [capacity, head_dim / 2] (RoFormer, Su 2021)."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(
        torch.arange(config.capacity, dtype=torch.float64), config.rope_base**-half
    )
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [batch, heads, seq, head_dim] by cos, sin [seq, head_dim / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
