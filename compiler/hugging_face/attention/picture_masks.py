"""Find the visible keys of a mask in a text with a picture, by calling the mask.

In: a mask function as in `windows.py`, and the picture's positions in the text. Out:
the keys that every query sees, and whether the positions of the picture attend to each
other in both directions (Gemma 3). A query sees all keys up to its own position, or a
window of them. Any other mask is refused.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvc.compiler.hugging_face.attention.attention_masks import MaskStandIn
from kvc.compiler.hugging_face.attention.windows import MaskFunction
from kvc.compiler.hugging_face.reading.calls import any_call
from kvc.compiler.hugging_face.reading.model_lines import name_of
from kvc.schema.errors import UnsupportedModel


def find_around_picture(
    mask: MaskFunction, picture: range, count: int, model: str
) -> MaskStandIn:
    """Return the visible keys of queries in a text of `count` tokens.

    The mask function is called only for positions in this text, since the function may
    know only the tokens of this text. A window can be found only if the text is longer
    than the window.

    Raises:
        UnsupportedModel: the mask is neither causal nor a causal window, apart from the
            positions of the picture.
    """
    with ThreadPoolExecutor(1) as other:  # its torch tracing modes are off
        found = other.submit(_find, mask, picture, count).result()
    if found is None:
        reason = (
            "its attention mask is neither a causal window nor one in which the places "
            "of the picture see each other"
        )
        raise UnsupportedModel(model=model, reason=reason)
    return found


def _find(mask: MaskFunction, picture: range, count: int) -> MaskStandIn | None:
    last = _seen(mask, count - 1, count).nonzero()
    if not last.numel():
        return None
    first = int(last[0])
    window = count - first if first else None
    asked = _asked(picture, window or count, count)
    for sight in (MaskStandIn(window), MaskStandIn(window, joined=True)):
        if all(
            torch.equal(
                _seen(mask, query, count), _wanted(sight, query, picture, count)
            )
            for query in asked
        ):
            return sight
    return None


def _asked(picture: range, window: int, count: int) -> list[int]:
    """Return the queries to test: those next to an edge of a window or the picture."""
    edges = (0, window, picture.start + window, picture.stop + window, count - 1)
    near = {edge + off for edge in edges for off in (-1, 0, 1)}
    around = range(picture.start - 1, picture.stop + 1)
    return sorted((near | {*around}) & {*range(count)})


def _seen(mask: MaskFunction, query: int, count: int) -> Tensor:
    """Return bool [count]: whether a query sees each token."""
    zero = torch.zeros((), dtype=torch.int32)
    keys = torch.arange(count, dtype=torch.int32)
    return mask(zero, zero, torch.tensor(query, dtype=torch.int32), keys).expand(count)


def _wanted(sight: MaskStandIn, query: int, picture: range, count: int) -> Tensor:
    end = picture.stop if sight.joined and query in picture else query + 1
    keys = torch.arange(count)
    return (keys >= sight.first(query)) & (keys < end)


# Masks of models with bidirectional pictures, in texts without pictures.


_NAME: Final = "blockwise_overlay"
# In these models, only `mm_token_type_ids` put a token into a picture's block.
_MODELS: Final = frozenset(
    {
        "gemma4.Gemma4ForConditionalGeneration",
        "gemma4_unified.Gemma4UnifiedForConditionalGeneration",
    }
)


@contextmanager
def without_blocks(model: PreTrainedModel) -> Iterator[None]:
    """Let a model's masks ignore blocks of pictures in texts without a picture.

    In such a block, the tokens of a picture see each other in both directions.
    """
    places: list[ModuleType] = []
    if name_of(model) in _MODELS:
        modules = [
            sys.modules["transformers.masking_utils"],
            sys.modules[type(model).__module__],
        ]
        places = [module for module in modules if hasattr(module, _NAME)]
    before = [vars(module)[_NAME] for module in places]
    for module, original in zip(places, before, strict=True):
        vars(module)[_NAME] = _of_pictures(original)
    try:
        yield
    finally:
        for module, original in zip(places, before, strict=True):
            vars(module)[_NAME] = original


def _of_pictures(original: Callable[..., object]) -> Callable[..., object]:
    def overlay(block_sequence_ids: Tensor) -> object:
        call = any_call()
        if call is None or call.picture is not None:
            return original(block_sequence_ids)
        return _in_no_block

    return overlay


def _in_no_block(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Replace the mask of a picture's block: no token sees another token by it."""
    return (query == key) & (query != key)
