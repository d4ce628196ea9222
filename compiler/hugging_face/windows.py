"""Find what a mask function of transformers lets a query see, by asking it.

In: a function of (batch, head, query, key) positions that says whether the query sees
the key. Out: the width of its causal window, None if it has none. A mask that is not a
causal window is refused, and so is a function that asks for more than positions.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch
from torch import Tensor

from kvc.schema.errors import UnsupportedModel

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_FAR: Final = 1 << 22  # a window that reaches so far back is none
_NEAR: Final = (0, 1, 2, 3, 7, 100, 1001)


def find_window(mask: MaskFunction, model: str) -> int | None:
    """Return how many keys a query sees, its own among them; None: all before it.

    A thread of its own asks, since the modes in which torch traces are the thread's.

    Raises:
        UnsupportedModel: the mask is neither causal nor a causal window.
    """
    with ThreadPoolExecutor(1) as other:
        return other.submit(_find, mask, model).result()


def _find(mask: MaskFunction, model: str) -> int | None:
    try:
        width = int(_seen(mask, _FAR).sum())
        window = None if width == _FAR + 1 else width
        near = [width + off for off in (-1, 0, 1, 2 * width + 1)] if window else []
        for query in (*_NEAR, *near, _FAR - 1, _FAR):
            if not torch.equal(_seen(mask, query), _band(query, window)):
                raise _unsupported(model, f"is no causal window at position {query}")
    except UnsupportedModel:
        raise
    except Exception as error:
        reason = f"asks for more than positions ({type(error).__name__}: {error})"
        raise _unsupported(model, reason) from error
    return window


def _seen(mask: MaskFunction, query: int) -> Tensor:
    """Return which of the keys 0 to `query + 1` a query sees: bool [query + 2]."""
    zero = torch.zeros((), dtype=torch.int32)
    keys = torch.arange(query + 2, dtype=torch.int32)
    seen = mask(zero, zero, torch.tensor(query, dtype=torch.int32), keys)
    return seen.expand(keys.shape)


def _band(query: int, window: int | None) -> Tensor:
    first = 0 if window is None else max(0, query - window + 1)
    band = torch.zeros(query + 2, dtype=torch.bool)
    band[first : query + 1] = True
    return band


def _unsupported(model: str, reason: str) -> UnsupportedModel:
    return UnsupportedModel(model=model, reason=f"its attention mask {reason}")
