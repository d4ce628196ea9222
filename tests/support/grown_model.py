"""A model with a past that grows, and code that depends on its length in many ways."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from kvc.compiler import Dim, Method

WIDTH, MOST = 8, 64
PAST, SEQ = Dim("past", 0, MOST), Dim("seq", 1, 8)


class Grown(nn.Module):
    """Model that attends to all tokens so far; its past is float32 [1, length, 8]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.before, self.ask = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.mix, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def step(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Append tokens x, float32 [1, seq, 8]; return results and the past."""
        y = silu(self.before(x))
        grown = torch.cat([past, y], 1)
        whole = self.mix(grown)  # fresh, as long as the past
        heads = whole.view(1, -1, 2, WIDTH // 2).transpose(1, 2)  # views of it
        keys = heads.repeat_interleave(2, 1)
        q = self.ask(y).view(1, -1, 4, WIDTH // 2).transpose(1, 2)
        length, seq = past.shape[1], x.shape[1]
        places = torch.arange(length + seq)
        seen = (places <= length + torch.arange(seq)[:, None])[None, None]
        z = scaled_dot_product_attention(q, keys, keys, seen)
        z = self.after(z.transpose(1, 2).flatten(2))
        last = grown[:, length + seq - 1 :]  # a view that begins where the past ends
        padded = torch.zeros(1, length + seq, WIDTH)
        padded[:, :1] = last  # an update of a fresh value, and one that keeps it
        more = padded.index_copy(1, torch.tensor([0]), last * 2)
        return z + last * (length + 1) + more.sum(1) - padded.sum(1), grown

    def again(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Append tokens by other code; return a sum over all tokens, and the past."""
        return self.before(x).sum(1) + past.sum(1), torch.cat([past, x], 1)

    def both(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Append tokens; return two views of the past, and the past.

        The views are the last token and the transposed past.
        """
        grown = torch.cat([past, x], 1)
        return grown[:, -1:], grown.transpose(1, 2), grown

    def masked(self, x: Tensor, past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Append a token; return a masked sum over the past, and the new past.

        The mask is float32 [1, past, 1].
        """
        return (past * mask).sum(1) + x.sum(1), torch.cat([past, x], 1)


def grown_methods(carried: bool = True, chunks: bool = True) -> list[Method]:
    """Return the methods of `Grown`.

    Args:
        carried: whether the past is a state; if not, the caller passes it.
        chunks: whether a call may have several tokens; if not, it has one.
    """
    past = torch.zeros(1, 3, WIDTH)
    x = torch.zeros(1, 2 if chunks else 1, WIDTH)
    carry = {"past": "[1]"} if carried else {}
    sizes = {"past": {1: PAST}, **({"x": {1: SEQ}} if chunks else {})}
    both = {"past": "[2]"} if carried else {}
    masked, dims = (x[:, :1], past, torch.zeros(1, 3, 1)), {1: PAST}
    return [
        Method("step", args=(x, past), dynamic=sizes, carry=carry),
        Method("again", args=(x, past), dynamic=sizes, carry=carry),
        Method("both", args=(x, past), dynamic=sizes, carry=both),
        Method("masked", masked, dynamic={"past": dims, "mask": dims}, carry=carry),
    ]
