"""Random functions over buffers, as a user could have written them in Python.

A function takes views of buffers, of its arguments and of its own values, computes,
and writes to any of these, in random order; all choices follow from a seed. Numbers
are whole or halves, in float64, so that every way to compute them gives the same.
"""

import random

import torch
from held_buffers import Buffers
from torch import Tensor

ROWS, COLUMNS = 4, 6


class RandomFunction(Buffers, n=torch.tensor([1, 3])):
    """Runs the random function of its seed.

    Buffers: a, b float64 [4, 6], c [6], d [2, 3, 4], n int64 [2].
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.register_buffer("a", torch.arange(24.0).double().reshape(4, 6) - 9)
        self.register_buffer("b", torch.ones(ROWS, COLUMNS).double())
        self.register_buffer("c", torch.arange(6.0).double())
        self.register_buffer("d", torch.zeros(2, 3, 4).double())

    def step(self, x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        return Author(self, random.Random(self.seed), x, y, at).write()

    def other(self, x: Tensor, y: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        return Author(self, random.Random(-1 - self.seed), x, y, at).write()


class Author:
    """Makes up a random function while running it."""

    def __init__(self, model, choose, *arguments) -> None:
        self.choose = choose
        *given, self.at = arguments
        self.pool = [model.a, model.b, model.c, model.d, *given]
        self.places = [model.n % 2, self.at]
        self.n = model.n

    def write(self) -> tuple[Tensor, ...]:
        """Take random actions; return some of the values that exist at the end."""
        actions = (self.view, self.compute, self.combine)
        actions += (self.write_into, self.write_at_places, self.count)
        for _ in range(self.choose.randint(4, 14)):
            self.choose.choices(actions, (5, 3, 2, 6, 1, 1))[0]()
        return tuple(self.choose.sample(self.pool, self.choose.randint(1, 4)))

    def some(self) -> Tensor:
        return self.choose.choice(self.pool)

    def view(self) -> None:
        """Add a view of an existing value to the pool; the kind of view is random."""
        base = self.some()
        if base.dim() == 0:
            self.pool.append(base.reshape(1))
            return
        axis = self.choose.randrange(base.dim())
        size = base.shape[axis]
        start = self.choose.randrange(size)
        count = self.choose.randint(1, size - start)
        views = [
            lambda: base.narrow(axis, start, count),
            lambda: base.select(axis, start - size * self.choose.randrange(2)),
            lambda: base[..., start % base.shape[-1] :: 2],
            lambda: base[-1:],
            lambda: base.transpose(0, axis),
            lambda: base.unsqueeze(axis),
            lambda: base.squeeze(),
            lambda: base.flatten() if base.is_contiguous() else base.transpose(0, -1),
            lambda: base.split(1, axis)[start],
            lambda: base.chunk(2, axis)[-1],
            lambda: base.unbind(axis)[start],
            lambda: base.detach(),
        ]
        self.pool.append(self.choose.choice(views)())

    def compute(self) -> None:
        """Add a value that is computed from one existing value."""
        base = self.some()
        makers = [
            lambda: base + 1,
            lambda: -base,
            lambda: base.abs() * 0.5,
            lambda: base.clone(),
            lambda: base.sum(-1, keepdim=True) if base.dim() else base * 2,
            lambda: base.sum(),
            lambda: base.clamp(-8, 8),
            lambda: base.roll(1, 0) if base.dim() else base,
            lambda: base.flip(0) if base.dim() else base,
            lambda: torch.where(base > 0, base, 1.0),
            lambda: torch.zeros_like(base),
            lambda: base.reshape(-1),
            lambda: base.contiguous(),
            lambda: base.amax(),
        ]
        self.pool.append(self.choose.choice(makers)().clamp(-4096, 4096))

    def combine(self) -> None:
        """Add a value that is computed from two existing values of fitting shapes."""
        one = self.some()
        other = self.fitting(one)
        makers = [
            lambda: one + other,
            lambda: one - other,
            lambda: torch.maximum(one, other),
            lambda: torch.where(one > other, one, other),
            lambda: torch.cat([one, other.expand_as(one)], -1) if one.dim() else one,
            lambda: torch.stack([one, other.expand_as(one)]),
        ]
        self.pool.append(self.choose.choice(makers)())

    def fitting(self, target: Tensor) -> Tensor:
        """Return a value that can be broadcast to the shape of `target`."""
        fits = [value for value in self.pool if _broadcasts(value, target)]
        if not fits or self.choose.random() < 0.15:
            return self.some().sum()
        return self.choose.choice(fits)

    def write_into(self) -> None:
        """Write in place to an existing value, which may be a view."""
        target = self.some()
        source = self.fitting(target)
        if self.choose.random() < 0.5:
            source = source * self.choose.choice([1.0, 0.5, -1.0])
        elif source.untyped_storage()._cdata == target.untyped_storage()._cdata:
            source = source.clone()
        axis = self.choose.randrange(max(1, target.dim()))
        start = self.choose.randrange(target.shape[axis]) if target.dim() else 0
        writes = [
            lambda: target.copy_(source),
            lambda: target.add_(source),
            lambda: target.mul_(0.5),
            lambda: target.sub_(source, alpha=2),
            lambda: target.fill_(3.0),
            lambda: target.zero_(),
            lambda: target.clamp_(max=6.0),
            lambda: target.masked_fill_(target > 4, -1.0),
        ]
        if target.dim():
            part = target.select(axis, start)
            writes += [
                lambda: part.copy_(source.sum()),
                lambda: target.narrow(axis, start, 1).fill_(source.amax()),
                lambda: target.narrow(axis, start, 1).add_(1),
                lambda: target.__setitem__(start % target.shape[0], 2.0),
                lambda: target.__setitem__((..., slice(0, None, 2)), source.amin()),
            ]
        self.choose.choice(writes)()

    def write_at_places(self) -> None:
        """Write to rows or columns whose numbers are in a tensor."""
        target = self.some()
        where = self.choose.choice(self.places)
        axes = [i for i, size in enumerate(target.shape) if size >= 2]
        if not axes:
            return
        axis = self.choose.choice(axes)
        part = target.narrow(axis, 0, 2) * self.choose.choice([2.0, -1.0])
        turned = part.transpose(0, axis)
        writes = [
            lambda: target.index_fill_(axis, where, 5.0),
            lambda: target.index_add_(axis, where, part),
            lambda: target.transpose(0, axis).__setitem__(where, 7.0),
            lambda: target.index_copy_(axis, self.at, part),
            lambda: target.transpose(0, axis).index_put_((self.at,), turned),
        ]
        self.choose.choice(writes)()

    def count(self) -> None:
        """Change the integer buffer n, and sometimes add its numbers as a value."""
        self.n.add_(self.choose.randint(1, 3))
        if self.choose.random() < 0.5:
            self.pool.append(self.n.to(torch.float64))


def _broadcasts(value: Tensor, target: Tensor) -> bool:
    if value.dim() > target.dim():
        return False
    ends = zip(value.shape[::-1], target.shape[::-1], strict=False)
    return all(size in (1, wanted) for size, wanted in ends)
