"""Compute recurrences for a chunk of tokens at once, by matrix products.

In: queries, keys, values, and the factor by which each token decays the state. Out: the
state after a chunk, and the results of the chunk's tokens. If the decay differs between
channels, a chunk is a single token: products over more tokens would divide by decays,
which can be 0.
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
        before: the state before the chunk.
        given: query, key and value [batch, heads, chunk, dim]; the logarithms of the
            decay by each token [batch, heads, chunk].

    Returns:
        The state after the chunk, and the results of the chunk's tokens.
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
        pairs: the block masks for `_unit_lower_inverse`.
        before: the state before the chunk.
        given: query, key and value [batch, heads, chunk, dim]; and for each token,
            [batch, heads, chunk], the logarithm of the decay, and the fraction of the
            token's value that is written.

    Returns:
        The state after the chunk, and the results of the chunk's tokens.
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
        before: the state before the token.
        given: query, key and value [batch, heads, dim]; the logarithms of the decay of
            each channel of keys [batch, heads, key_dim]; and the fraction of the
            token's value that is written [batch, heads].

    Returns:
        The state after the token, and the result of the token.
    """
    query, key, value, g, beta = given
    kept = before * g.exp()[..., None]
    new = (value - (key[:, :, None] @ kept)[:, :, 0]) * beta[..., None]
    after = kept + key[..., None] * new[:, :, None]
    return after, (query[:, :, None] @ after)[:, :, 0]


def _decay(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the decay of a state over the tokens of a chunk.

    Args:
        g: [batch, heads, chunk], logarithms of the decay by each token.

    Returns:
        The logarithms of the decay by all tokens up to and including each token,
        [batch, heads, chunk]; and for tokens i and j, the decay by the tokens after j
        up to and including i, [batch, heads, chunk i, chunk j], which is 0 if i is
        before j.
    """
    total = g.cumsum(-1)
    after = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool).triu(1)
    between = total[..., :, None] - total[..., None, :]
    return total, between.masked_fill(after, -torch.inf).exp()


def _unit_lower_inverse(below: Tensor, pairs: Sequence[Tensor]) -> Tensor:
    """Return the inverse of `1 + below`.

    `below` [..., chunk, chunk] is strictly lower triangular. The blocks on the diagonal
    are inverted first, then pairs of blocks: for diagonal blocks A and B with the block
    C below A, the inverse has -inv(B) C inv(A) in the place of C. Rounding errors are
    as small as those of substitution; a power series would lose all digits if keys are
    similar.
    """
    one, *larger = pairs
    inverse = one - below * larger[0]
    for pair in larger[1:]:
        inverse = inverse - inverse @ (below * pair) @ inverse
    return inverse


def block_pairs() -> list[Tensor]:
    """Return the block masks for `_unit_lower_inverse`, float32 [chunk, chunk].

    The first mask selects the diagonal. Each further mask is for one block size. For
    each pair of diagonal blocks of that size, it selects the block that is below the
    first block and to the left of the second block.
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
    """Split [batch, seq, heads, ...] into [chunks, batch, heads, chunk, ...].

    The last chunk is filled with zeros, which do not change the state. An extra chunk
    has only zeros, so that there are always two chunks or more: torch would treat a
    single chunk as a special case.
    """
    seq = tensor.shape[1]
    chunks = (seq + CHUNK - 1) // CHUNK + 1
    if not torch.compiler.is_exporting():
        left = (0, 0) * (tensor.dim() - 2) + (0, chunks * CHUNK - seq)
        split = pad(tensor, left).view(tensor.shape[0], -1, CHUNK, *tensor.shape[2:])
        return split.movedim((1, 3), (0, 2))
    # torch cannot prove equations of quotients, so tokens are selected by index. The
    # result is contiguous: torch would ask how strides of such sizes are ordered.
    tokens = torch.arange(chunks)[:, None] * CHUNK + torch.arange(CHUNK)
    chosen = tensor[:, tokens.clamp(max=seq - 1)]
    missing = (tokens >= seq).view(-1, CHUNK, *[1] * (tensor.dim() - 2))
    return chosen.masked_fill(missing, 0).movedim((1, 3), (0, 2)).contiguous()


def joined(chunks: Tensor, seq: int) -> Tensor:
    """Merge [chunks, batch, heads, chunk, dim] into [batch, seq, heads, dim]."""
    whole = chunks.permute(1, 0, 3, 2, 4).flatten(1, 2)
    if not torch.compiler.is_exporting():
        return whole[:, :seq]
    return whole.index_select(1, torch.arange(seq))
