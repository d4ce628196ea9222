"""Blocks of rows, put together anew."""

from collections.abc import Iterator

import torch
from torch import Tensor


def gathered(least: int, blocks: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield the same rows in blocks of at least so many elements, the last of fewer."""
    held: list[Tensor] = []
    for block in blocks:
        held.append(block)
        if sum(map(Tensor.numel, held)) >= least:
            yield torch.cat(held)
            held = []
    if held:
        yield torch.cat(held)


def in_multiples(count: int, blocks: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield the same rows in blocks that have a multiple of `count` each."""
    kept: Tensor | None = None
    for block in blocks:
        rows = block if kept is None else torch.cat((kept, block))
        whole = len(rows) // count * count
        kept = rows[whole:] if whole < len(rows) else None
        if kept is None or whole:
            yield rows[:whole]
    assert kept is None, "rows that are no multiple have another form"
