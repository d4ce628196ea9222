"""Models with int8 caches that are written and read in branches and loops.

Each method `step` takes tokens int64 [1, seq] and a bool. Its logits must be those of
`Exact.reference`.
"""

import torch
from cached_models import SEQ, TOKENS
from int8_models import SLOTS_FIRST, Exact
from torch import Tensor
from torch._higher_order_ops.scan import scan
from viewing_branches import dense

from kvc.compiler import Method

YES = torch.tensor(True)
update, attend = torch.ops.kvc.cache_update, torch.ops.kvc.attention
Caches = tuple[Tensor, Tensor]


class Branching(Exact):
    """The base of these models: `run` returns new caches, which are stored.

    `run` gets the new queries, keys and values, and returns the attention and both
    caches.
    """

    def step(self, tokens: Tensor, p: Tensor) -> Tensor:
        start, q, k, v = self.begin(tokens)
        y, *kept = self.run(p, start, q, k.clone(), v.clone())
        self.k.copy_(kept[0])
        self.v.copy_(kept[1])
        self.position.add_(tokens.shape[1])
        return self.finish(y)

    def run(self, p, start, q, k, v) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError


class Written(Branching):
    """Writes its caches in one branch only; attention reads them after the branches."""

    def run(self, p, start, q, k, v) -> tuple[Tensor, Tensor, Tensor]:
        def kept(old_k: Tensor, old_v: Tensor, k: Tensor, v: Tensor) -> Caches:
            return update(old_k, k, start), update(old_v, v, start)

        def lost(old_k: Tensor, old_v: Tensor, k: Tensor, v: Tensor) -> Caches:
            return old_k.clone(), old_v.clone()

        new = torch.cond(p, kept, lost, (self.k, self.v, k, v))
        return attend(q, *new, start + q.shape[2]), *new


class MergedFixed(Branching):
    """Writes and reads its caches in both branches; the bool says if it has a past."""

    def run(self, p, start, q, k, v) -> tuple[Tensor, Tensor, Tensor]:
        seq = q.shape[2]

        def later(old_k, old_v, q, k, v) -> tuple[Tensor, Tensor, Tensor]:
            new = update(old_k, k, start), update(old_v, v, start)
            return attend(q, *new, start + seq), *new

        def first(old_k, old_v, q, k, v) -> tuple[Tensor, Tensor, Tensor]:
            new = update(old_k, k, start), update(old_v, v, start)
            return attend(q, *new, torch.full_like(start, seq)), *new

        return torch.cond(p, later, first, (self.k, self.v, q.clone(), k, v))


class SwappedInBranch(Branching, k=SLOTS_FIRST, v=SLOTS_FIRST):
    """Its caches have slots before heads; branches get them with heads first.

    A second branch reads the caches.
    """

    def run(self, p, start, q, k, v) -> tuple[Tensor, Tensor, Tensor]:
        end = start + q.shape[2]
        k, v = (x.transpose(1, 2).contiguous() for x in (k, v))

        def kept(old_k: Tensor, old_v: Tensor, k: Tensor, v: Tensor) -> Caches:
            """Write k and v, slots before heads, into caches with heads first."""
            k, v = k.transpose(1, 2), v.transpose(1, 2)
            return update(old_k, k, start), update(old_v, v, start)

        def lost(old_k: Tensor, old_v: Tensor, k: Tensor, v: Tensor) -> Caches:
            return dense(old_k), dense(old_v)

        passed = (self.k.transpose(1, 2), self.v.permute(0, 2, 1, 3))
        new = torch.cond(p, kept, lost, (*passed, k, v))
        y = torch.cond(
            end.sum() > 9,
            lambda q, k, v: attend(q, k, v, end),
            lambda q, k, v: attend(q, k, v, end) * 1,
            (q.clone(), *(x.contiguous() for x in new)),
        )
        return y, new[0].transpose(1, 2), new[1].permute(0, 2, 1, 3)


class Scanned(Branching):
    """Scans over the tokens: each is written to the caches, and then attends."""

    def run(self, p, start, q, k, v) -> tuple[Tensor, Tensor, Tensor]:
        def one(held, new) -> tuple[tuple[Tensor, ...], Tensor]:
            (k, v, at), (query, key, value) = held, new
            k, v = update(k, key, at), update(v, value, at)
            return (k, v, at + 1), attend(query, k, v, at + 1)

        through = tuple(x.permute(2, 0, 1, 3)[:, :, :, None] for x in (q, k, v))
        (k, v, _), rows = scan(one, (self.k.clone(), self.v.clone(), start), through)
        return rows[:, :, :, 0].permute(1, 2, 0, 3), k, v


class Looped(Branching):
    """Writes its caches in a branch within a while loop, in one of two turns."""

    def run(self, p, start, q, k, v) -> tuple[Tensor, Tensor, Tensor]:
        def body(i: Tensor, old_k: Tensor, old_v: Tensor) -> tuple[Tensor, ...]:
            new = torch.cond(
                i == 1,
                lambda old_k, old_v: (update(old_k, k, start), update(old_v, v, start)),
                lambda old_k, old_v: (old_k.clone(), old_v.clone()),
                (old_k, old_v),
            )
            return i + 1, *new

        begin = (torch.tensor(0), self.k, self.v)
        _, *new = torch.while_loop(lambda i, k, v: i < 2, body, begin)
        return attend(q, *new, start + q.shape[2]), *new


def branching_method() -> Method:
    return Method("step", args=(TOKENS, YES), dynamic={"tokens": {1: SEQ}})
