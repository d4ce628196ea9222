"""Tiny modules with state, seeded, for tests of capture and of whole runs."""

import torch
from torch import Tensor, nn


class IndexCopyCache(nn.Module):
    """A cache [1, 8, 4] written by `index_copy_` at given slots, read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 8, 4))
        self.scale = nn.Parameter(torch.arange(4.0) + 1)

    def prefill(self, rows: Tensor, slots: Tensor) -> Tensor:
        self.cache.index_copy_(1, slots, rows * self.scale)
        return self.cache.sum(1)

    def decode(self, row: Tensor, slot: Tensor) -> Tensor:
        self.cache.index_copy_(1, slot, row * self.scale)
        return self.cache * 2


class Accumulator(nn.Module):
    """A buffer that starts as ones and adds up what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(3))

    def add(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 1.0

    def read(self) -> Tensor:
        return self.total + 0.0


class OldAndNew(nn.Module):
    """Returns the old state after having written the new one: needs a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(2, 3))

    def step(self, x: Tensor) -> tuple[Tensor, Tensor]:
        old = self.k.clone()
        self.k.index_copy_(0, torch.tensor([1]), x)
        return old, self.k.clone()


class Swap(nn.Module):
    """Two states that change places in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(2))
        self.register_buffer("b", torch.ones(2))

    def swap(self) -> tuple[Tensor, Tensor]:
        a = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(a)
        return self.a * 1, self.b * 1


class NameClash(nn.Module):
    """A buffer and an argument of one name."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(4))

    def step(self, k: Tensor) -> Tensor:
        self.k.add_(k)
        return self.k * 1.0


class Nested(nn.Module):
    """Nested containers and constants in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def mix(
        self,
        pair: tuple[Tensor, Tensor],
        *,
        options: dict[str, object],
        flip: bool = False,
    ) -> dict[str, object]:
        a, b = pair
        rows = options["rows"]
        mixed = self.linear(a) + b * options["factor"] + rows[0]
        return {
            "mixed": -mixed if flip else mixed,
            "parts": [a + 1, (b, None)],
            "flip": flip,
        }


class MountedTwice(nn.Module):
    """One module under two names: one state."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Accumulator()
        self.second = self.first

    def left(self, x: Tensor) -> Tensor:
        return self.first.add(x)

    def right(self, x: Tensor) -> Tensor:
        return self.second.add(x)


class Reassigns(nn.Module):
    """Assigns its buffer anew, which tracing drops."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(1, 2))

    def step(self, x: Tensor) -> Tensor:
        self.k = torch.cat([self.k, x], 0)
        return self.k.sum()


class Unsupported(nn.Module):
    """Uses ops that no kernel supports, twice one of them."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.linalg.svd(x)[1]
        z = torch.fft.rfft(x).real
        return torch.linalg.svd(z)[1].sum() + y.sum()


class OverlappingBuffers(nn.Module):
    """Two buffers over one storage, one of them written."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.zeros(8)
        self.register_buffer("head", base[:6])
        self.register_buffer("tail", base[4:])

    def step(self, x: Tensor) -> Tensor:
        self.head.add_(x)
        return self.tail.sum()
