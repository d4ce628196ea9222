"""How attention scores are computed: scale, soft cap, masks, slopes.

Holds the arguments of `attention` that change scores, narrowed to one row, and applies
them to a block of queries and keys.
"""

from dataclasses import replace

import torch
from torch import Tensor

from kvc.schema.frozen import frozen
from kvc.schema.torch_ops.visibility import Block


@frozen
class Scoring:
    """How scores are made of products; the fields are arguments of `attention`."""

    scale: float | None
    softcap: float | None
    mask: Tensor | None
    slopes: Tensor | None
    sinks: Tensor | None

    def of_row(self, row: int) -> "Scoring":
        """Return what holds for one row: the mask narrowed to it."""
        if self.mask is None or self.mask.shape[0] == 1:
            return self
        return replace(self, mask=self.mask.narrow(0, row, 1))

    @property
    def is_plain(self) -> bool:
        """Whether scores are scaled products, some of them hidden."""
        products = self.softcap is None and self.slopes is None and self.sinks is None
        return products and (self.mask is None or self.mask.dtype == torch.bool)

    @property
    def is_bare(self) -> bool:
        """Whether scores are scaled products, none of them hidden."""
        return self.mask is None and self.is_plain

    def seen(self, block: Block) -> Tensor | None:
        """Return which keys of a block queries see, as far as no number hides them.

        Bool [count, keys] or [1, heads or 1, count, keys]; None: all are seen.
        """
        if self.mask is None:
            return block.band(torch.device("cpu"))
        band = block.band(self.mask.device)
        if self.mask.dtype != torch.bool:
            return band
        mask = _part_of(self.mask, block)
        return mask if band is None else mask & band

    def adjust_(self, scores: Tensor, block: Block) -> None:
        """Cap, bias and hide a block's scores [heads, count, keys], in place."""
        dtype, device = scores.dtype, scores.device
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.slopes is not None:
            slopes = self.slopes.to(dtype)[:, None, None]
            scores.addcmul_(slopes, block.distances(dtype, device))
        if self.mask is not None and self.mask.dtype != torch.bool:
            scores.add_(_part_of(self.mask, block)[0].to(dtype))
        seen = self.seen(block)
        if seen is not None:
            hidden = seen.logical_not().reshape(-1, block.count, block.keys)
            scores.masked_fill_(hidden, -torch.inf)


def _part_of(mask: Tensor, block: Block) -> Tensor:
    """Return the part [1, heads or 1, count, keys] of a row's mask."""
    return block.pick(mask.narrow(2, block.first, block.count), 3)
