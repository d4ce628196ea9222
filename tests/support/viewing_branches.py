"""A cache [2, 8, 4] that branches and loops read and write as views or in parts.

Each method takes p bool, x float32 [2, 1, 4] and at int64 [1].
"""

import torch
from held_buffers import Buffers
from torch import Tensor


def dense(x: Tensor) -> Tensor:
    """Return a contiguous copy; torch.cond wants the same layout from both branches."""
    return x.clone(memory_format=torch.contiguous_format)


def first_rows(c: Tensor, x: Tensor, at: Tensor) -> Tensor:
    """Return c [16, 4] with the first row of x [2, 1, 4] written at row `at`."""
    return c.index_copy(0, at, x[0])


class _Kept(Buffers, c=torch.zeros(2, 8, 4)):
    def keep(self, c: Tensor) -> Tensor:
        self.c.copy_(c)
        return self.c.sum(0)


class Viewing(_Kept):
    """Methods that pass the cache to branches; those in `IN_PLACE` copy nothing."""

    def passed(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        c = torch.cond(p, lambda c: first_rows(c, x, at), dense, (self.c.view(16, 4),))
        return self.keep(c.view(2, 8, 4))

    def swapped(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Pass the cache with two axes swapped."""
        row = x.transpose(0, 1)
        flipped = self.c.transpose(0, 1)
        c = torch.cond(p, lambda c: c.index_copy(0, at, row), dense, (flipped,))
        return self.keep(c.transpose(0, 1))

    def longer(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Pass the cache with one more axis."""
        c = self.c.unsqueeze(0)
        c = torch.cond(p, lambda c: c.index_copy(2, at, x[None]), dense, (c,))
        return self.keep(c.squeeze(0))

    def inside(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """View the cache in another shape inside the branches; return it so."""
        c = torch.cond(
            p,
            lambda c: first_rows(c.view(16, 4), x, at),
            lambda c: dense(c.view(16, 4)),
            (self.c,),
        )
        return self.keep(c.view(2, 8, 4))

    def swapped_inside(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        row = x.transpose(0, 1)
        c = torch.cond(
            p,
            lambda c: c.transpose(0, 1).index_copy(0, at, row),
            lambda c: dense(c.transpose(0, 1)),
            (self.c,),
        )
        return self.keep(c.transpose(0, 1))

    def part_inside(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Write a part of a copy, then the whole copy through another shape."""

        def yes(c: Tensor) -> Tensor:
            c = c.clone()
            c[:1].index_copy_(1, at, x[:1])
            c.view(16, 4).index_copy_(0, at + 1, x[1])
            return c

        return self.keep(torch.cond(p, yes, dense, (self.c,)))

    def place_by_place(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Scale the cache in the branch that writes no row."""
        c = torch.cond(
            p, lambda c: first_rows(c, x, at), lambda c: c * 0.5, (self.c.view(16, 4),)
        )
        return self.keep(c.view(2, 8, 4))

    def twice(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Run two branches one after the other on the same view of the cache."""
        c = torch.cond(p, lambda c: first_rows(c, x, at), dense, (self.c.view(16, 4),))
        c = torch.cond(
            x.sum() > 40, lambda c: c.index_fill(0, at, 7.0), lambda c: c * 1, (c,)
        )
        self.c.copy_(c.view(2, 8, 4))
        return c.sum(0)

    def nested(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """View the cache in another shape inside one branch, and pass it to another."""

        def outer(c: Tensor) -> Tensor:
            inner = torch.cond(
                x.sum() > 40, lambda d: first_rows(d, x, at), dense, (c.view(16, 4),)
            )
            return inner.view(2, 8, 4)

        return self.keep(torch.cond(p, outer, dense, (self.c,)))

    def looped(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Carry a view of the cache with swapped axes through a loop."""
        row = x.transpose(0, 1)

        def body(i: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, c.index_copy(0, i[None], row * (i + 1)).contiguous()

        flipped = self.c.transpose(0, 1).contiguous()
        start = torch.tensor(0)
        _, c = torch.while_loop(lambda i, c: (i < at[0]) & p, body, (start, flipped))
        return self.keep(c.transpose(0, 1))

    def read_beside(self, p: Tensor, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Write a view of the cache, and read the old content in another shape."""

        def yes(c: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
            return first_rows(c, x, at), old.sum(0)

        def no(c: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
            return dense(c), old[0] * 2

        c, y = torch.cond(p, yes, no, (self.c.view(16, 4), self.c.clone()))
        self.c.copy_(c.view(2, 8, 4))
        return y, self.c.sum(0)

    def handed_out(self, p: Tensor, x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return the written view as a result too."""
        c = torch.cond(p, lambda c: first_rows(c, x, at), dense, (self.c.view(16, 4),))
        self.c.copy_(c.view(2, 8, 4))
        return c.sum(1), c.view(4, 4, 4)

    def compared(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Return the sum of old and new content, which needs a copy."""
        old = self.c.view(16, 4)
        c = torch.cond(p, lambda c: first_rows(c, x, at), dense, (old,))
        both = old + c
        self.c.copy_(c.view(2, 8, 4))
        return both

    def gathered(self, p: Tensor, x: Tensor, at: Tensor) -> Tensor:
        """Pass a reordered copy of the cache that is no view, which needs a copy."""
        c = self.c.transpose(0, 1).reshape(16, 4)
        c = torch.cond(p, lambda c: first_rows(c, x, at), dense, (c,))
        return self.keep(c.view(8, 2, 4).transpose(0, 1))


COPYING = {
    "compared": "reads the old value and needs the new one",
    "gathered": "the stored value is a view of another value",
}
IN_PLACE = tuple(
    name
    for name, member in vars(Viewing).items()
    if callable(member) and name != "__init__" and name not in COPYING
)
