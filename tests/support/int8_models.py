"""Models with int8 or float16 caches, and the eager models that round as they do.

Weights are multiples of 1/16, or of 1/256 for float16 caches. So keys and values are
exact in float32 in whatever order they are added up, but not in a narrower dtype: how
rows are rounded depends neither on the machine nor on how many tokens a call has.
"""

import torch
from cached_models import SLOTS, WIDTH, Linear, Rows
from torch import Tensor, nn

SLOTS_FIRST = torch.zeros(1, SLOTS, 1, WIDTH)


def as_float16(x: Tensor) -> Tensor:
    """Return x rounded to float16, as float32."""
    return x.half().float()


def as_int8(x: Tensor) -> Tensor:
    """Return rows x [..., width] rounded as int8 rows are, without kvc's code."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    steps = torch.round(x / scale.clamp(min=torch.finfo(torch.float32).tiny))
    return steps * scale


def make_exact(model: nn.Module, parts: int) -> None:
    """Round all parameters of a model to multiples of 1 / `parts`."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * parts).round() / parts)


class Exact(Linear):
    """A layer whose keys and values are exact; `reference` rounds them as int8."""

    rounded, parts = staticmethod(as_int8), 16

    def __init__(self) -> None:
        super().__init__()
        make_exact(self, self.parts)

    def reference(self, tokens: Tensor) -> Tensor:
        return super().reference(tokens, self.rounded)

    def plain_reference(self, tokens: Tensor) -> Tensor:
        """Return the logits of the layer without quantization."""
        return super().reference(tokens)


class Swapped(Exact, k=SLOTS_FIRST, v=SLOTS_FIRST):
    """A layer whose cache has its slots before its heads."""

    def prefill(self, tokens: Tensor) -> Tensor:
        start, q, k, v = self.begin(tokens)
        self.write(k.transpose(1, 2), v.transpose(1, 2), start, 1)
        keys, values = self.k.transpose(1, 2), self.v.permute(0, 2, 1, 3)
        end = start + tokens.shape[1]
        return self.finish(torch.ops.kvc.attention(q, keys, values, end))


class IndexCopied(Exact):
    """A layer that writes its cache with `index_copy_`, which kvc recognizes."""

    def prefill(self, tokens: Tensor) -> Tensor:
        start, seq = self.position.clone(), tokens.shape[1]
        places = start + torch.arange(seq)
        q, k, v = self.project(self.embed(tokens, places))
        self.k.index_copy_(2, places, k)
        self.v.index_copy_(2, places, v)
        self.position.add_(seq)
        return self.finish(torch.ops.kvc.attention(q, self.k, self.v, start + seq))


class Ring(Exact):
    """A layer whose ring has slots for a window and the longest prefill."""

    WINDOW, LONGEST, KEEP = 5, 16, 0

    def __init__(self) -> None:
        super().__init__()
        slots = self.KEEP + self.WINDOW + self.LONGEST - 1
        self.register_buffer("k", torch.zeros(1, 1, slots, WIDTH))
        self.register_buffer("v", torch.zeros(1, 1, slots, WIDTH))

    def prefill(self, tokens: Tensor) -> Tensor:
        start, q, k, v = self.begin(tokens)
        self.write(k, v, start, 2, "circular", None, self.KEEP)
        ring = {"window_left": self.WINDOW - 1, "layout": "circular", "keep": self.KEEP}
        held = self.k, self.v, start + tokens.shape[1]
        return self.finish(torch.ops.kvc.attention(q, *held, **ring))

    def sees(self, ago: Tensor, places: Tensor) -> Tensor:
        return (ago >= 0) & ((ago < self.WINDOW) | (places < self.KEEP))


class KeptRing(Ring):
    """A layer whose ring also keeps the first positions."""

    KEEP = 3


class ShortRing(Ring):
    """A layer with a ring so short that its slots are reused after few tokens."""

    WINDOW, LONGEST, KEEP = 1, 4, 1


def _half(kind: type[Exact]) -> type[Exact]:
    """Return the subclass of a model whose cache is float16."""
    own = {"rounded": staticmethod(as_float16), "parts": 256}
    return type(f"Half{kind.__name__}", (kind,), own)


HalfLinear, HalfSwapped, HalfIndexCopied = map(_half, (Exact, Swapped, IndexCopied))
HalfRing, HalfKeptRing, HalfShortRing = map(_half, (Ring, KeptRing, ShortRing))


class ExactRows(Rows):
    """A batch in which each row has a position of its own, with an int8 cache."""

    parts = 16

    def __init__(self) -> None:
        super().__init__()
        make_exact(self, self.parts)


class HalfRows(ExactRows):
    """`ExactRows` with a float16 cache."""

    parts = 256


class OwnInt8(nn.Module):
    """A model that quantizes its cache to int8 itself, with kvc's operators."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        for name in ("k", "v"):
            rows = torch.zeros(1, 2, slots, 8, dtype=torch.int8)
            self.register_buffer(name, rows)
            self.register_buffer(f"{name}_scale", torch.zeros(1, 2, slots))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, start: Tensor) -> Tensor:
        ops = torch.ops.kvc
        for name, new in (("k", k), ("v", v)):
            rows, scale = ops.quantize_cache(new)
            held, scales = getattr(self, name), getattr(self, f"{name}_scale")
            held.copy_(ops.cache_update(held, rows, start))
            scales.copy_(ops.cache_update(scales, scale, start, 2))
        given = q, self.k, self.v, start + q.shape[2]
        scales = {"k_scale": self.k_scale, "v_scale": self.v_scale}
        plain = ops.attention(*given, **scales)
        capped = ops.attention(*given, softcap=5.0, **scales)
        return torch.cat([plain, capped], 1)
