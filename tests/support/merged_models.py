"""Merged decoders: one method whose branches are with and without a past."""

import torch
from cached_models import PAST, SEQ, TOKENS, WIDTH, OneLayer
from torch import Tensor

from kvc.compiler import Method


class Merged(OneLayer):
    """Says by an argument whether there is a past, which grows by `torch.cat`."""

    def step(self, tokens: Tensor, past: Tensor, begun: Tensor) -> dict[str, Tensor]:
        """Take a past float32 [2, 1, length, width], keys and values in one."""
        length = past.shape[2]
        places = length + torch.arange(tokens.shape[1])
        q, k, v = self.project(self.embed(tokens, places))
        new = torch.cat([k, v])

        def later(past: Tensor, new: Tensor) -> Tensor:
            return torch.cat([past, new], 2)

        def first(past: Tensor, new: Tensor) -> Tensor:
            return new.clone()

        whole = torch.cond(begun, later, first, (past, new))
        k, v = whole[:1], whole[1:]
        seen = (places + 1)[-1:]
        y = torch.ops.kvc.attention(q, k, v, seen)
        return {"logits": self.finish(y), "present": whole}


def merged_method() -> Method:
    """The method of `Merged`."""
    return Method(
        "step",
        args=(TOKENS, torch.zeros(2, 1, 3, WIDTH), torch.tensor(True)),
        dynamic={"tokens": {1: SEQ}, "past": {2: PAST}},
        carry={"past": "present"},
    )
