"""Find the visible keys of a transformers mask function, by calling the function.

In: a function of (batch, head, query, key) positions that tells whether the query sees
the key. Out: the visible keys: all keys up to the query, a window, or the keys of the
query's chunk of the text; for an encoder's tokens, all keys, or a window to both sides.
Any other mask is refused, and so is a function that needs more than positions.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel, masking_utils

from kvc.compiler.hugging_face.attention.attention_masks import MaskStandIn
from kvc.compiler.hugging_face.reading.model_lines import running_line
from kvc.schema.errors import UnsupportedModel

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_FAR: Final = 1 << 22  # a wider window counts as no window
# The padding of texts without padding, for masks of chunks; made before any trace.
_NO_PADDING: Final = torch.zeros(1, dtype=torch.int64)
_NEAR: Final = (0, 1, 2, 3, 7, 100, 1001)


@contextmanager
def unpadded_chunks(_: PreTrainedModel) -> Iterator[None]:
    """Let transformers make masks of chunks as for texts without padding.

    transformers counts the padding in a tensor of the call, whose values cannot be read
    while the call is traced. Texts in kvc have no padding on the left.
    """
    original = masking_utils.chunked_causal_mask_function

    def without_padding(chunk_size: int, left_padding: Tensor) -> MaskFunction:
        return original(chunk_size, _NO_PADDING)

    masking_utils.chunked_causal_mask_function = without_padding
    try:
        yield
    finally:
        masking_utils.chunked_causal_mask_function = original


def find_sight(mask: MaskFunction, model: str) -> MaskStandIn:
    """Return the keys that a mask function lets each query see.

    The mask function runs in a separate thread, where torch's tracing modes are off.

    Raises:
        UnsupportedModel: the mask is neither causal nor a causal window, nor chunks.
    """
    with ThreadPoolExecutor(1) as other, _of_positions(model):
        return other.submit(_find, mask, model).result()


def sees_all(mask: MaskFunction) -> bool:
    """Tell whether each query sees all keys, before and after its own position."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(_all_seen, mask).result()


ALL: Final = MaskStandIn(None, whole=True)


def find_both_ways(mask: MaskFunction, model: str) -> MaskStandIn:
    """Return the keys that each query sees among the tokens of one call.

    The visible keys are all tokens, a window to both sides, or a result of
    `find_sight`.

    Raises:
        UnsupportedModel: the mask is of another kind.
    """
    with ThreadPoolExecutor(1) as other, _of_positions(model):
        return other.submit(_find_both, mask, model).result()


@contextmanager
def _of_positions(model: str) -> Iterator[None]:
    """Convert an error of a mask function to `UnsupportedModel`.

    A mask function that needs more than positions raises an error.
    """
    line = running_line()
    try:
        yield
    except UnsupportedModel:
        raise
    except Exception as error:
        raise _unsupported(
            model,
            f"asks for more than positions: {line} computes it from more than the "
            "positions of a query and a key, such as which tokens are of one picture "
            "or document, and kvc asks about positions alone, in texts of any length; "
            "causal masks, windows and chunks of a text compile",
        ) from error


def _find_both(mask: MaskFunction, model: str) -> MaskStandIn:
    if _all_seen(mask):
        return ALL
    reach = _reach(mask)
    if reach is not None and _is_both_sided(mask, reach):
        return MaskStandIn(reach, whole=True)
    return _find(mask, model)


def _is_both_sided(mask: MaskFunction, reach: int) -> bool:
    """Tell whether each query sees `reach` - 1 keys before and after its own."""
    zero = torch.zeros((), dtype=torch.int32)
    for query in (*_NEAR, reach - 1, reach, reach + 1, 3 * reach + 1):
        keys = torch.arange(query + 2 * reach + 2, dtype=torch.int32)
        seen = mask(zero, zero, torch.tensor(query, dtype=torch.int32), keys)
        wanted = (keys - query).abs() < reach
        if not torch.equal(seen.expand(keys.shape), wanted):
            return False
    return True


def _all_seen(mask: MaskFunction) -> bool:
    zero = torch.zeros((), dtype=torch.int32)
    far = torch.arange(_FAR + 1, dtype=torch.int32)
    if not (mask(zero, zero, zero, far).all() and mask(zero, zero, far, zero).all()):
        return False  # a wide window
    keys = torch.arange(2 * max(_NEAR), dtype=torch.int32)
    queries = [torch.tensor(query, dtype=torch.int32) for query in _NEAR]
    return all(bool(mask(zero, zero, query, keys).all()) for query in queries)


def _find(mask: MaskFunction, model: str) -> MaskStandIn:
    reach = _reach(mask)
    first, *others = (
        [MaskStandIn(None)]
        if reach is None
        else [MaskStandIn(reach), MaskStandIn(reach, chunk=reach)]
    )
    wrong = _differs(mask, first, reach)
    if wrong is None:
        return first
    for other in others:
        if _differs(mask, other, reach) is None:
            return other
    raise _unsupported(model, f"is no causal window at position {wrong}, and no chunks")


def _reach(mask: MaskFunction) -> int | None:
    """Return the number of queries that see the first key, None for all."""
    zero = torch.zeros((), dtype=torch.int32)
    seen = mask(zero, zero, torch.arange(_FAR + 1, dtype=torch.int32), zero)
    blind = seen.expand(_FAR + 1).logical_not().nonzero()
    return int(blind[0]) if blind.numel() else None


def _differs(mask: MaskFunction, sight: MaskStandIn, reach: int | None) -> int | None:
    """Return a query that sees other keys than `sight` says, None if there is none.

    `reach` is the number of queries that see the first key.
    """
    near = [reach + off for off in (-1, 0, 1, 2 * reach + 1)] if reach else []
    for query in (*_NEAR, *near, _FAR - 1, _FAR):
        if not torch.equal(_seen(mask, query), _band(query, sight.first(query))):
            return query
    return None


def _seen(mask: MaskFunction, query: int) -> Tensor:
    """Return bool [query + 2]: whether a query sees the keys 0 to `query + 1`."""
    zero = torch.zeros((), dtype=torch.int32)
    keys = torch.arange(query + 2, dtype=torch.int32)
    seen = mask(zero, zero, torch.tensor(query, dtype=torch.int32), keys)
    return seen.expand(keys.shape)


def _band(query: int, first: int) -> Tensor:
    band = torch.zeros(query + 2, dtype=torch.bool)
    band[first : query + 1] = True
    return band


def _unsupported(model: str, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=model, reason=f"its attention mask {reason}")


def in_chunk(start: Tensor, chunk: int, seq: int, slots: int) -> Tensor:
    """Return which slots of a linear cache are not before the start of a query's chunk.

    `start` int64 [batch] is the position of each row's first query.

    Returns:
        bool [batch, 1, seq, slots], for each query (axis 2) and slot (axis 3).
    """
    # In float32, in which backends can divide; exact up to 2**24 positions.
    positions = (start[:, None] + torch.arange(seq)).float()
    first = torch.floor(positions / chunk) * chunk
    return torch.arange(slots).float() >= first[:, None, :, None]
