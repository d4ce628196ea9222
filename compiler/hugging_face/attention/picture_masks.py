"""Find what a mask lets queries see in a text with a picture, by asking it.

In: a function as of `windows.py`, which places of the text the picture has. Out: what
every query sees: all up to itself, or a window; and whether the places of the picture
see each other, later ones too (Gemma 3). Any other mask is refused.
"""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from kvc.compiler.hugging_face.attention.attention_masks import Sight
from kvc.compiler.hugging_face.attention.windows import MaskFunction
from kvc.schema.errors import UnsupportedModel


def find_around_picture(
    mask: MaskFunction, picture: range, count: int, model: str
) -> Sight:
    """Return what queries see in a text of so many tokens.

    Other positions are not asked about: the function may know of these tokens alone. A
    window is found where the text is longer.

    Raises:
        UnsupportedModel: the mask is neither causal nor a causal window, beside what
            the places of the picture see.
    """
    with ThreadPoolExecutor(1) as other:  # the modes in which torch traces are not its
        found = other.submit(_find, mask, picture, count).result()
    if found is None:
        reason = (
            "its attention mask is neither a causal window nor one in which the places "
            "of the picture see each other"
        )
        raise UnsupportedModel(model=model, reason=reason)
    return found


def _find(mask: MaskFunction, picture: range, count: int) -> Sight | None:
    last = _seen(mask, count - 1, count).nonzero()
    if not last.numel():
        return None
    first = int(last[0])
    window = count - first if first else None
    asked = _asked(picture, window or count, count)
    for sight in (Sight(window), Sight(window, joined=True)):
        if all(
            torch.equal(
                _seen(mask, query, count), _wanted(sight, query, picture, count)
            )
            for query in asked
        ):
            return sight
    return None


def _asked(picture: range, window: int, count: int) -> list[int]:
    """Return the queries about which to ask: wherever something begins or ends."""
    edges = (0, window, picture.start + window, picture.stop + window, count - 1)
    near = {edge + off for edge in edges for off in (-1, 0, 1)}
    around = range(picture.start - 1, picture.stop + 1)
    return sorted((near | {*around}) & {*range(count)})


def _seen(mask: MaskFunction, query: int, count: int) -> Tensor:
    """Return which tokens a query sees: bool [count]."""
    zero = torch.zeros((), dtype=torch.int32)
    keys = torch.arange(count, dtype=torch.int32)
    seen = mask(zero, zero, torch.tensor(query, dtype=torch.int32), keys)
    return seen.expand(count)


def _wanted(sight: Sight, query: int, picture: range, count: int) -> Tensor:
    end = picture.stop if sight.joined and query in picture else query + 1
    keys = torch.arange(count)
    return (keys >= sight.first(query)) & (keys < end)
