"""Tiny modules with states that other compilers have got wrong, or easily could."""

from collections.abc import Callable

import torch
from held_buffers import ZERO, Buffers
from torch import Tensor, nn

Write = Callable[[nn.Module, Tensor, Tensor], None]


class TwoConds(nn.Module):
    """Two torch.cond calls, one after the other."""

    def forward(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.cond(p, lambda x: x + 1.0, lambda x: x - 1.0, (x,))
        b = torch.cond(p, lambda x: x * 10.0, lambda x: x * 20.0, (x,))
        return a + b, a * 1.0


class SameName(Buffers, k=torch.zeros(4)):
    """A buffer and an argument with the same name.

    The argument of `total` may have any size.
    """

    def step(self, k: Tensor) -> Tensor:
        self.k.add_(k)
        return self.k * 1.0

    def total(self, k: Tensor) -> Tensor:
        self.k.add_(k.sum())
        return self.k * 1.0


class OneHasState(Buffers, cache=torch.zeros(4)):
    """A method with a state, and one with much scratch memory and no state."""

    def a(self, x: Tensor) -> Tensor:
        self.cache.add_(x)
        return self.cache + 0.0

    def b(self, x: Tensor) -> Tensor:
        y = x * 3.0
        z = y + x
        return (z * y).relu()


class Adder(nn.Module):
    """Two buffers of a given size; each call adds to both."""

    def __init__(self, size: int, cache: float = 0.0, other: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("cache", torch.full((size,), cache))
        self.register_buffer("other", torch.full((size,), other))

    def add(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.cache.add_(x)
        self.other.add_(2 * x)
        return self.cache + 0.0, self.other + 0.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.add(x)


class Shared(Adder):
    """Several methods over the same two buffers."""

    def prefill(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.add(x)

    def decode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.add(x * 10)

    def by_forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward(x + 1)

    def by_call(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self(x - 1)


class Apart(nn.Module):
    """Two methods over buffers of two modules, with equal names and any two sizes."""

    def __init__(self, size: int, other_size: int) -> None:
        super().__init__()
        self.long, self.short = Adder(size), Adder(other_size)

    def prefill(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.long(x)

    def decode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.short(x)


class TwoShapes(nn.Module):
    """Two methods that carry a state `past`, in two different shapes."""

    def prefill(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, past + x

    def decode(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        return x * 3, past * 2


class LikeAConstant(
    Buffers, zcache=torch.full((4,), 3.0), zother=torch.full((4,), 5.0)
):
    """A state whose initial bytes are equal to those of a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.w0 = nn.Parameter(torch.full((4,), 9.0))
        self.w = nn.Parameter(torch.full((4,), 3.0))

    def step(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.w + self.w0
        self.zcache.add_(y)
        self.zother.add_(y)
        return self.zcache + 0.0, self.zother + 0.0

    def weight(self, x: Tensor) -> Tensor:
        return x * self.w


class CallersCache(nn.Module):
    def add(self, x: Tensor, cache: Tensor) -> Tensor:
        cache.add_(x)
        return cache.sum()

    def put(self, token: Tensor, place: Tensor, cache: Tensor) -> Tensor:
        start = place.item()
        torch._check(start >= 0)
        torch._check(start < cache.shape[1])
        cache.narrow(1, start, 1).copy_(token)
        return cache.sum()

    def extend(self, token: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        longer = torch.cat([cache, token], 1)
        return longer.sum(), longer


class FourOwners(Buffers, calls=torch.zeros((), dtype=torch.int64)):
    """States of four kinds of owner.

    A module that is mounted under two names has two; `ones` is not saved with the
    model; `calls` counts calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = Adder(3, cache=1.0)
        self.second = self.first
        self.register_buffer("ones", torch.ones(3), persistent=False)

    def left(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x)

    def right(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        return self.second(x + self.ones)

    def write(self, x: Tensor) -> None:
        self.ones.copy_(x)

    def read(self) -> tuple[Tensor, Tensor]:
        return self.ones * 2, self.calls + 0


class WrittenParameter(nn.Module):
    """A parameter that one method writes and another reads by a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(3.0), requires_grad=False)
        self.tied = self.weight

    def learn(self, x: Tensor) -> Tensor:
        self.weight.add_(x)
        return self.weight * 1.0

    def apply_it(self, x: Tensor) -> Tensor:
        return x * self.tied


class Written(Buffers, k=torch.arange(12.0).reshape(2, 6) - 4, count=ZERO):
    """States that a given function writes: k [2, 6], some of it below 0; count [1]."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write

    def step(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        self.write(self, x, places)
        return self.k + 0.0, self.count * 1


class PlainAfterLinear(
    Buffers, k=torch.zeros(1, 1, 8, 2), sum=torch.zeros(1, 1, 1, 2), position=ZERO
):
    """A cache written at its position, and a sum that a failed call would spoil."""

    def step(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        start = self.position.clone()
        self.k.copy_(torch.ops.kvc.cache_update(self.k, rows * 2, start))
        self.sum.mul_(0.5).add_(rows.sum(2, keepdim=True))
        self.position.add_(rows.shape[2])
        return self.k + 0.0, self.sum * 1.0
