"""Models of one attention layer whose cache is written in a branch."""

import torch
from cached_models import DIM, PAST, SEQ, TOKENS, WIDTH, Linear, OneLayer
from torch import Tensor, nn
from torch.nn import functional

from kvc.compiler import Dim, Method

HEARD = 16  # the most positions of an encoder


class InBranch(Linear):
    """Model that writes its caches in one branch; the other branch does not."""

    def step(self, tokens: Tensor, keep: Tensor) -> Tensor:
        start, q, k, v = self.begin(tokens)
        seq = tokens.shape[1]
        k, v = k.clone(), v.clone()  # torch.cond takes no operands that share memory

        def kept(old_k, old_v, k, v) -> tuple[Tensor, Tensor]:
            new_k = torch.ops.kvc.cache_update(old_k, k, start)
            return new_k, torch.ops.kvc.cache_update(old_v, v, start)

        def lost(old_k, old_v, k, v) -> tuple[Tensor, Tensor]:
            return old_k.clone(), old_v.clone()

        new_k, new_v = torch.cond(keep, kept, lost, (self.k, self.v, k, v))
        self.k.copy_(new_k)
        self.v.copy_(new_v)
        self.position.add_(seq)
        return self.finish(torch.ops.kvc.attention(q, self.k, self.v, start + seq))

    def reference(self, tokens: Tensor) -> Tensor:
        """Return the logits of tokens [1, seq]; some tokens are not written.

        A token that is not written is given as ~token; the queries find zeros in its
        slot.
        """
        kept, places = tokens >= 0, torch.arange(tokens.shape[1])
        x = self.embed(torch.where(kept, tokens, ~tokens), places)
        q, k, v = self.project(x)
        k, v = k * kept[:, None, :, None], v * kept[:, None, :, None]
        return self.attend(q, k, v, places[:, None] >= places)


def branch_method() -> Method:
    """Return the method of `InBranch`."""
    return Method(
        "step", args=(TOKENS, torch.tensor(True)), dynamic={"tokens": {1: SEQ}}
    )


class Merged(OneLayer):
    """Model with a past that grows by `torch.cat`, if an argument says there is one."""

    def step(self, tokens: Tensor, past: Tensor, begun: Tensor) -> dict[str, Tensor]:
        """Return the logits of tokens, and the past with these tokens added.

        Args:
            tokens: int64 [1, seq].
            past: float32 [2, 1, length, width], the keys and the values of earlier
                tokens.
            begun: bool []; False if there is no past yet, so that `past` is ignored.
        """
        places = past.shape[2] + torch.arange(tokens.shape[1])
        q, k, v = self.project(self.embed(tokens, places))
        new = torch.cat([k, v])

        def later(past: Tensor, new: Tensor) -> Tensor:
            return torch.cat([past, new], 2)

        def first(past: Tensor, new: Tensor) -> Tensor:
            return new.clone()

        whole = torch.cond(begun, later, first, (past, new))
        y = torch.ops.kvc.attention(q, whole[:1], whole[1:], (places + 1)[-1:])
        return {"logits": self.finish(y), "present": whole}


def merged_method() -> Method:
    """Return the method of `Merged`."""
    return Method(
        "step",
        args=(TOKENS, torch.zeros(2, 1, 3, WIDTH), torch.tensor(True)),
        dynamic={"tokens": {1: SEQ}, "past": {2: PAST}},
        carry={"past": "present"},
    )


class MergedPair(OneLayer):
    """Decoder with a past of tokens, and a cross cache that its first call computes.

    The cross cache is computed from the output of an encoder.
    """

    def __init__(self) -> None:
        super().__init__()
        self.crossing = nn.Linear(DIM, 2 * WIDTH)

    def step(self, tokens, encoded, past, cross, begun) -> dict[str, Tensor]:
        """Return the logits, the past with the new tokens, and the cross cache.

        Args:
            tokens: int64 [1, seq].
            encoded: float32 [1, heard, dim], the output of an encoder.
            past: float32 [2, 1, length, width], the keys and the values of earlier
                tokens.
            cross: float32 [2, 1, length, width], the keys and the values of `encoded`.
            begun: bool []; False for the first call, which ignores `past` and `cross`.
        """
        places = past.shape[2] + torch.arange(tokens.shape[1])
        q, k, v = self.project(self.embed(tokens, places))

        def later(past, new, cross, encoded) -> tuple[Tensor, Tensor]:
            return torch.cat([past, new], 2), cross.clone()

        def first(past, new, cross, encoded) -> tuple[Tensor, Tensor]:
            return new.clone(), self.made(encoded)

        given = past, torch.cat([k, v]), cross, encoded
        whole, kept = torch.cond(begun, later, first, given)
        y = torch.ops.kvc.attention(q, whole[:1], whole[1:], (places + 1)[-1:])
        logits = self.finish_crossed(q + y, kept)
        return {"logits": logits, "present": whole, "kept": kept}

    def made(self, encoded: Tensor) -> Tensor:
        """Return the cross cache [2, 1, heard, width] for the output of an encoder."""
        k, v = self.crossing(encoded)[:, None].chunk(2, dim=-1)
        return torch.cat([k, v])

    def finish_crossed(self, q: Tensor, kept: Tensor) -> Tensor:
        heard = torch.full((1,), kept.shape[2])
        z = torch.ops.kvc.attention(q, kept[:1], kept[1:], heard, causal=False)
        return self.finish(z)

    def reference_pair(self, tokens: Tensor, encoded: Tensor) -> Tensor:
        """Return the logits of all tokens, without a cache and without branches."""
        places = torch.arange(tokens.shape[1])
        q, k, v = self.project(self.embed(tokens, places))
        seen = places[:, None] >= places
        y = functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        k, v = self.made(encoded).split(1)
        z = functional.scaled_dot_product_attention(q + y, k, v, enable_gqa=True)
        return self.finish(z)


def pair_method(least: int = 0) -> Method:
    """Return the method of `MergedPair`.

    Args:
        least: the least number of positions of the encoder's output in a call.
    """
    past, cross = torch.zeros(2, 1, 3, WIDTH), torch.zeros(2, 1, 4, WIDTH)
    return Method(
        "step",
        args=(TOKENS, torch.ones(1, 5, DIM), past, cross, torch.tensor(True)),
        dynamic={
            "tokens": {1: SEQ}, "past": {2: PAST},
            "encoded": {1: Dim("heard", least, HEARD)},
            "cross": {2: Dim("kept", 0, HEARD)},
        },
        carry={"past": "present", "cross": "kept"},
    )  # fmt: skip
