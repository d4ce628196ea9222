"""Tiny modules, most with state, for tests of tracing and of whole runs."""

from collections.abc import Callable

import torch
from held_buffers import ZERO, Buffers
from torch import Tensor, nn

TOUCHED = 0  # a global that methods of other modules change


class IndexCopyCache(Buffers, cache=torch.zeros(1, 8, 4)):
    """A cache [1, 8, 4] that `index_copy_` writes at given slots; all of it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(4.0) + 1)

    def prefill(self, rows: Tensor, slots: Tensor) -> Tensor:
        self.cache.index_copy_(1, slots, rows * self.scale)
        return self.cache.sum(1)

    def decode(self, row: Tensor, slot: Tensor) -> Tensor:
        self.cache.index_copy_(1, slot, row * self.scale)
        return self.cache * 2


class Accumulator(Buffers, total=torch.ones(3)):
    """A buffer that starts as ones and to which arguments are added."""

    def add(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 1.0

    def read(self) -> Tensor:
        return self.total + 0.0


class PartWriter(Buffers, k=torch.arange(12.0).reshape(2, 6) - 4):
    """A state [2, 6], some of it below 0, that a given function writes."""

    def __init__(self, write: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self.write = write

    def step(self, x: Tensor) -> Tensor:
        self.write(self.k, x)
        return self.k + 0.0


class LastTwoZeroed(nn.Module):
    """Zeroes the last two elements of an axis whose length is dynamic."""

    def forward(self, x: Tensor) -> Tensor:
        copy = x.clone()
        copy[:, -2:] = 0
        return copy


class OldAndNew(Buffers, k=torch.zeros(2, 3)):
    """Writes a state, and returns its old and its new content: needs a copy."""

    def step(self, x: Tensor) -> tuple[Tensor, Tensor]:
        old = self.k.clone()
        self.k.index_copy_(0, torch.tensor([1]), x)
        return old, self.k.clone()


class Swap(Buffers, a=torch.zeros(2), b=torch.ones(2)):
    """Two states that swap their contents in each call."""

    def swap(self) -> tuple[Tensor, Tensor]:
        a = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(a)
        return self.a * 1, self.b * 1


class Nested(nn.Module):
    """Takes and returns nested containers with tensors and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def mix(self, pair, *, options, flip=False) -> dict[str, object]:
        a, b = pair
        mixed = self.linear(a) + b * options["factor"] + options["rows"][0]
        parts = [a + 1, (b, None)]
        return {"mixed": -mixed if flip else mixed, "parts": parts, "flip": flip}


class MountedTwice(nn.Module):
    """One module under two names, whose buffer must become one state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Accumulator()
        self.second = self.first

    def left(self, x: Tensor) -> Tensor:
        return self.first.add(x)

    def right(self, x: Tensor) -> Tensor:
        return self.second.add(x)


class Reassigns(Buffers, k=torch.zeros(1, 2)):
    """Assigns a new tensor to its buffer's name, which tracing would lose."""

    def step(self, x: Tensor) -> Tensor:
        self.k = torch.cat([self.k, x], 0)
        return self.k.sum()


class Unsupported(nn.Module):
    """Uses two ops that no kernel supports, one of them twice."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.mode(x)[0]
        z = torch.histc(x)
        return torch.mode(z)[0].sum() + y.sum()


class OverlappingBuffers(nn.Module):
    """Two buffers that overlap in memory; one is written, the other read."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.zeros(8)
        self.register_buffer("head", base[:6])
        self.register_buffer("tail", base[4:])

    def step(self, x: Tensor) -> Tensor:
        self.head.add_(x)
        return self.tail.sum()


class KvcCache(Buffers, cache=torch.zeros(1, 1, 8, 4), position=ZERO):
    """A cache [1, 1, 8, 4] that `cache_update` writes at a counted position."""

    def append(self, rows: Tensor) -> Tensor:
        start = self.position.clone()
        self.cache.copy_(torch.ops.kvc.cache_update(self.cache, rows, start))
        self.position.add_(rows.shape[2])
        return self.cache * 2


class SliceCache(Buffers, cache=torch.zeros(1, 8, 4)):
    """A cache [1, 8, 4] written by slice assignment."""

    def replace(self, rows: Tensor) -> Tensor:
        self.cache[:, : rows.shape[1]] = rows
        return self.cache * 2

    def middle(self, rows: Tensor) -> Tensor:
        self.cache[:, 3:-1:2] = rows
        return self.cache * 2


class BatchedTwoDims(nn.Module):
    """Joins two inputs with two different dynamic lengths."""

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y * 2], 1)


class SeveralResults(nn.Module):
    """Calls ops that have more than one result."""

    def forward(self, x: Tensor) -> dict[str, object]:
        low, high = x.split(2, dim=1)
        first, *rest = x.chunk(4, dim=1)
        return {
            "topk": tuple(x.topk(2)),
            "sorted": tuple(x.sort(dim=0, descending=True)),
            "max": tuple(x.max(dim=1)),
            "halves": [low + high, high - low],
            "quarters": (first, rest[2]),
        }


class ConvNet(nn.Module):
    """A 2-d convolution, a mean over rows, then a 1-d convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.plane = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.line = nn.Conv1d(4, 2, 2, dilation=2, groups=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(torch.relu(self.plane(x)).mean(2))


class Dtypes(Buffers, seen=torch.zeros(4, dtype=torch.int64)):
    """A state of a given float dtype, and integers that are compared to booleans."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(6, dtype=dtype))

    def scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.sum.add_(x * torch.tensor(1.5, dtype=x.dtype))
        return self.sum * 2, x.float()

    def count(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.add_(ids)
        return self.seen > 6, (ids == 7) | (ids < 0)


class Encoder(nn.Module):
    """One encoder block without state: softmax attention, layer norm, gelu."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(1, 2) / 8**0.5, dim=-1)
        x = x + weights @ v
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class LearnedPositionBlock(nn.Module):
    """GPT-2's block: learned positions, SDPA with a float mask over a fixed cache."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(8, 8), nn.Embedding(8, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.register_buffer("k", torch.zeros(1, 2, 8, 4), persistent=False)
        self.register_buffer("v", torch.zeros(1, 2, 8, 4), persistent=False)

    def append(self, tokens: Tensor, slots: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(slots)
        parts = self.qkv(self.norm(x)).split(8, dim=-1)
        q, k, v = (p.view(1, -1, 2, 4).transpose(1, 2) for p in parts)
        self.k.index_copy_(2, slots, k)
        self.v.index_copy_(2, slots, v)
        later = torch.arange(8)[None, :] > slots[:, None]
        mask = torch.zeros(later.shape).masked_fill(later, float("-inf"))
        y = nn.functional.scaled_dot_product_attention(q, self.k, self.v, mask)
        return x + self.out(y.transpose(1, 2).reshape(1, -1, 8))


class ConstantOut(nn.Module):
    """Returns a weight, its input, and two views of its input, all unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0), requires_grad=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight, x, x.t(), x[:, 1:]


class ReadsThenWrites(Buffers, k=torch.ones(1, 8, 4)):
    """Applies a linear layer to a state, writes the state, applies another layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def step(self, row: Tensor, slot: Tensor) -> Tensor:
        y = self.first(self.k)
        self.k.index_copy_(1, slot, row)
        return self.second(y * 2)

    def read(self) -> Tensor:
        return self.k + 0.0


class Branches(nn.Module):
    """Branches in Python on sizes; a trace is valid only for some of the sizes."""

    def one(self, t: Tensor) -> Tensor:
        return t * 100 if t.shape[1] == 1 else t * 2

    def more_than_one(self, t: Tensor) -> Tensor:
        return t + 1 if t.shape[1] > 1 else t * 100

    def equal(self, t: Tensor, u: Tensor) -> Tensor:
        return t * 3 if t.shape[1] == u.shape[1] else t + u.sum()

    def any_size(self, t: Tensor) -> Tensor:
        return t * 2 if t.shape[1] >= 1 else t


class PythonState(Buffers, cache=torch.zeros(8)):
    """Keeps state in Python attributes, which a trace would treat as constants."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0
        self.past: list[Tensor] = []
        self.named = {"k": torch.zeros(2)}
        self.plain = torch.zeros(2)

    def count(self, t: Tensor) -> Tensor:
        self.cache[self.position] = t[0]
        self.position += 1
        return self.cache.clone()

    def grow(self, t: Tensor) -> Tensor:
        self.past.append(t)
        return sum(self.past)

    def named_item(self, t: Tensor) -> Tensor:
        self.named["k"] = self.named["k"] + t
        return self.named["k"] * 1

    def attribute(self, t: Tensor) -> Tensor:
        self.plain = self.plain + t
        return self.plain * 1


class Sorting(nn.Module):
    """Applies a linear layer; one of two methods also sorts the result."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)

    def ordered(self, x: Tensor) -> Tensor:
        """Return the result sorted in bfloat16, which no backend can compute."""
        return torch.sort(self.project(x).bfloat16())[0].float()

    def plain(self, x: Tensor) -> Tensor:
        """Return the plain result, which all backends can compute."""
        return self.project(x)


class Decomposing(Sorting):
    """Finds eigenvalues in place of an order."""

    def ordered(self, x: Tensor) -> Tensor:
        """Return the eigenvalues of the result, which no backend can compute."""
        return torch.linalg.eigvalsh(self.project(x))
