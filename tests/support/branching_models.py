"""Models whose methods branch and loop; the dynamic dimensions are called n."""

import torch
from held_buffers import Buffers
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan

from kvc.compiler import Dim

N = Dim("n", 1, 6)
YES, NO = torch.tensor(True), torch.tensor(False)


def turned(c: Tensor, x: Tensor, at: Tensor) -> Tensor:
    return c.index_copy(0, at, x)


class _Linear(Buffers):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 4)


class Branches(_Linear):
    """Model without state that has consecutive branches and nested branches."""

    def consecutive(self, p: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        a = torch.cond(p, lambda x: x + 1.0, lambda x: x - 1.0, (x,))
        b = torch.cond(p, lambda x: x * 10.0, lambda x: x * 20.0, (x,))
        return a, b, a + b

    def nested(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        def outer(x: Tensor) -> Tensor:
            a = torch.cond(q, lambda x: x * 3, lambda x: x * 5, (x,))
            b = torch.cond(q, lambda x: x + 7, lambda x: x - 7, (x,))
            return a + b

        return torch.cond(p, outer, lambda x: x - 1, (x,))

    def captured(self, p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def yes(x: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(x), self.linear.weight.clone()

        def no(x: Tensor) -> tuple[Tensor, Tensor]:
            return x.relu(), torch.ones(4, 4) * 2

        return torch.cond(p, yes, no, (x,))

    def transposed(self, p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(
            p, lambda y: y.reshape(-1), lambda y: y.flatten() * 2, (x.t(),)
        )


class Loops(_Linear):
    """Model whose methods use while_loop, scan and map."""

    def until(self, count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, x * 2 + count

        start = torch.zeros((), dtype=torch.int64), x
        return torch.while_loop(lambda i, x: i < count, body, start)

    def swapped(self, count: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        def body(i: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
            return i + 1, b.clone(), a.clone()

        start = torch.tensor(0), a, b
        return torch.while_loop(lambda i, a, b: i < count, body, start)

    def twice(self, count: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        def body(i: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
            c = a + b
            return i + 1, c, c.clone()

        start = torch.tensor(0), a, b
        return torch.while_loop(lambda i, a, b: i < count, body, start)

    def scanned(self, h: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.linear(h) + x)
            return h, h * 2

        return scan(step, h, xs)

    def mapped(self, xs: Tensor, y: Tensor) -> Tensor:
        return map_over(lambda x, y: self.linear(x) + y, xs, y)

    def branching(self, count: Tensor, x: Tensor) -> Tensor:
        def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, torch.cond(i % 2 == 0, lambda x: x + 1, lambda x: x * 2, (x,))

        _, x = torch.while_loop(lambda i, x: i < count, body, (torch.tensor(0), x))
        return x


class Kept(_Linear, c=torch.zeros(8, 4)):
    """Model with a buffer c [8, 4] that branches and loops update."""

    def one(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        def yes(c: Tensor, x: Tensor) -> Tensor:
            return c.index_copy(0, at, self.linear(x))

        self.c.copy_(torch.cond(p, yes, lambda c, x: c.clone(), (self.c, x)))
        return self.c.sum(0) + x.sum(0)

    def chain(self, p: Tensor, q: Tensor, x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        before = self.c.sum()

        def outer(c: Tensor, x: Tensor) -> Tensor:
            c = c.index_copy(0, at, x)
            return torch.cond(
                q, lambda c: c.index_fill(0, at, 2.0), lambda c: c * 2, (c,)
            )

        c = torch.cond(p, outer, lambda c, x: c.clone(), (self.c, x))
        between = c.sum(0)
        c = torch.cond(q, lambda c: c.index_add(0, at, x), lambda c: c.clone(), (c,))
        self.c.copy_(c)
        return before + between, self.c * 1

    def reshaped(self, p: Tensor, x: Tensor) -> Tensor:
        def yes(c: Tensor) -> Tensor:
            return c.view(-1).index_copy(0, torch.arange(4), x).view(8, 4)

        self.c.copy_(torch.cond(p, yes, lambda c: c.clone(), (self.c,)))
        return self.c * 1

    def viewed(self, p: Tensor, x: Tensor) -> Tensor:
        def yes(c: Tensor) -> Tensor:
            return c.index_copy(0, torch.arange(4), x)

        c = torch.cond(p, yes, lambda c: c.clone(), (self.c.view(-1),))
        self.c.copy_(c.view(8, 4))
        return self.c * 1

    def filled(self, p: Tensor) -> Tensor:
        zeros = torch.zeros_like
        self.c.copy_(torch.cond(p, lambda c: c + 1, lambda c: zeros(c), (self.c,)))
        return self.c * 1

    def kept_old(self, p: Tensor, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        old = self.c * 1
        c = torch.cond(
            p, lambda c: c.index_copy(0, at, x), lambda c: c.clone(), (self.c,)
        )
        mixed = self.c + c
        self.c.copy_(c)
        return mixed, old

    def both(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Update c in a branch that also reads all of the old content of c."""

        def yes(c: Tensor) -> Tensor:
            return c.index_copy(0, at, x) + c.flip(0)

        self.c.copy_(torch.cond(p, yes, lambda c: c.clone(), (self.c,)))
        return self.c * 1

    def looped(self, count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def body(i: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, c.index_copy(0, i, x * (i + 1))

        start = torch.zeros(1, dtype=torch.int64)
        i, c = torch.while_loop(lambda i, c: (i < count).all(), body, (start, self.c))
        self.c.copy_(c)
        return self.c.sum(0), i

    def gathered(self, xs: Tensor) -> Tensor:
        at = torch.ones(1, dtype=torch.int64)

        def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            c = c.index_add(0, at, x)
            return c, c.sum(0)

        c, sums = scan(step, self.c.clone(), xs)
        self.c.copy_(c)
        return sums
