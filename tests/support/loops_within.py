"""Loops within loops that write a cache: each turn of a while loop runs a scan."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

Put = Callable[[Tensor, Tensor, Tensor], Tensor]  # of a cache, a token, its position


def write_in_scans(model: nn.Module, count: Tensor, xs: Tensor, put: Put) -> Tensor:
    """Run scans over `xs` in a while loop, each of which writes a model's `cache`.

    There are `count` scans. Return the position after the last one.
    """

    def inner(carry: tuple[Tensor, Tensor], x: Tensor):
        place, cache = carry
        return (place + 1, put(cache, x, place)), x * 2

    def turn(i: Tensor, place: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
        (end, cache), _ = scan(inner, (place.clone(), cache.clone()), xs, dim=0)
        return i + 1, end.clone(), cache.clone()

    first = torch.zeros((), dtype=torch.int64), model.position.clone()
    start = *first, model.cache.clone()
    _, end, cache = while_loop(lambda i, place, cache: i < count, turn, start)
    model.cache.copy_(cache)
    model.position.copy_(end)
    return end * 1
