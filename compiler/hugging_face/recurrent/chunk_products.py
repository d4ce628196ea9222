"""What recurrences compute with a chunk of tokens at once: products of matrices.

In: queries, keys, values and how much of a state tokens leave. Out: a state after a
chunk, and results of its tokens. Where tokens leave other shares of each channel, a
chunk is one token: products of many would divide by shares that may be 0.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK: Final = 64  # tokens, a power of two


def state_space_chunk(before: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Advance a state [batch, heads, head_dim, state] by a chunk of tokens.

    Args:
        before: the state.
        given: query, key and value [batch, heads, chunk, dim]; the logarithms of what
            tokens leave [batch, heads, chunk].
    """
    query, key, value, g = given
    total, decay = _decay(g)
    out = (query @ key.transpose(-1, -2) * decay) @ value
    out = out + (query * total.exp()[..., None]) @ before.transpose(-1, -2)
    left = key * (total[..., -1:] - total).exp()[..., None]
    kept = total[..., -1].exp()[..., None, None]
    return before * kept + value.transpose(-1, -2) @ left, out


def delta_chunk(
    pairs: Sequence[Tensor], before: Tensor, given: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Advance a state [batch, heads, key_dim, value_dim] by a chunk of tokens.

    Args:
        pairs: what `_unit_lower_inverse` chooses blocks by.
        before: the state.
        given: query, key and value [batch, heads, chunk, dim]; the logarithms of what
            tokens leave, and what they write of their values [batch, heads, chunk].
    """
    query, key, value, g, beta = given
    total, decay = _decay(g)
    written = key * beta[..., None]
    overlap = (written @ key.transpose(-1, -2) * decay).tril(-1)
    solved = _unit_lower_inverse(overlap, pairs)
    new = solved @ (value * beta[..., None])
    new = new - solved @ (written * total.exp()[..., None]) @ before
    out = (query * total.exp()[..., None]) @ before
    out = out + (query @ key.transpose(-1, -2) * decay) @ new
    left = key * (total[..., -1:] - total).exp()[..., None]
    kept = total[..., -1].exp()[..., None, None]
    return before * kept + left.transpose(-1, -2) @ new, out


def channel_delta_token(
    before: Tensor, given: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Advance a state [batch, heads, key_dim, value_dim] by a token.

    Args:
        before: the state.
        given: query, key and value [batch, heads, dim]; the logarithms of what the
            token leaves of each channel of keys [batch, heads, key_dim], and what it
            writes of its value [batch, heads].
    """
    query, key, value, g, beta = given
    kept = before * g.exp()[..., None]
    new = (value - (key[:, :, None] @ kept)[:, :, 0]) * beta[..., None]
    after = kept + key[..., None] * new[:, :, None]
    return after, (query[:, :, None] @ after)[:, :, 0]


def _decay(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is left of a state after tokens of a chunk.

    Args:
        g: [batch, heads, chunk], logarithms of what each leaves.

    Returns:
        The logarithms of what all tokens up to each leave, of the same shape, and what
        those after a token j leave up to a token i, [.., chunk i, chunk j]; 0 before j.
    """
    total = g.cumsum(-1)
    after = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool).triu(1)
    between = total[..., :, None] - total[..., None, :]
    return total, between.masked_fill(after, -torch.inf).exp()


def _unit_lower_inverse(below: Tensor, pairs: Sequence[Tensor]) -> Tensor:
    """Return the inverse of `1 + below`, of strictly lower [..., chunk, chunk].

    Blocks of the diagonal are inverted first, then pairs of them: of two, with C below
    their diagonal, the inverse has -inv(B) C inv(A) there. It rounds as substitution
    does, where a series of powers would lose all digits for keys that are alike.
    """
    one, *larger = pairs
    inverse = one - below * larger[0]
    for pair in larger[1:]:
        inverse = inverse - inverse @ (below * pair) @ inverse
    return inverse


def block_pairs() -> list[Tensor]:
    """Return what `_unit_lower_inverse` chooses blocks by, float32 [chunk, chunk].

    First the diagonal, then for each size of blocks those on the left of the lower ones
    of each pair.
    """
    places = range(CHUNK)
    found = [[[float(i == j) for j in places] for i in places]]
    for block in (2**k for k in range(CHUNK.bit_length() - 1)):
        chosen = [
            [float(i // block == j // block + 1 and i // block % 2) for j in places]
            for i in places
        ]
        found.append(chosen)
    return [torch.tensor(rows) for rows in found]


def chunked(tensor: Tensor) -> Tensor:
    """Return [batch, seq, heads, ...] as [chunks, batch, heads, chunk, ...].

    Zeros fill what is left: they write nothing and leave all of the state. There is a
    chunk of them alone, so that there is never just one, where torch would ask whether
    there is.
    """
    seq = tensor.shape[1]
    chunks = (seq + CHUNK - 1) // CHUNK + 1
    if not torch.compiler.is_exporting():
        left = (0, 0) * (tensor.dim() - 2) + (0, chunks * CHUNK - seq)
        split = pad(tensor, left).view(tensor.shape[0], -1, CHUNK, *tensor.shape[2:])
        return split.movedim((1, 3), (0, 2))
    # torch cannot prove how quotients go together, so tokens are chosen by number. The
    # result is in one piece: torch would ask how strides of such sizes are ordered.
    tokens = torch.arange(chunks)[:, None] * CHUNK + torch.arange(CHUNK)
    chosen = tensor[:, tokens.clamp(max=seq - 1)]
    missing = (tokens >= seq).view(-1, CHUNK, *[1] * (tensor.dim() - 2))
    return chosen.masked_fill(missing, 0).movedim((1, 3), (0, 2)).contiguous()


def joined(chunks: Tensor, seq: int) -> Tensor:
    """Return [chunks, batch, heads, chunk, dim] as [batch, seq, heads, dim]."""
    whole = chunks.permute(1, 0, 3, 2, 4).flatten(1, 2)
    if not torch.compiler.is_exporting():
        return whole[:, :seq]
    return whole.index_select(1, torch.arange(seq))
