"""Masks of models that let the places of a picture see each other, in texts alone.

Gemma 4 is told which tokens are of a picture by an argument of its own, and makes a
mask of blocks where it is not told, too: no token is in any. In: a model. Out: inside
`without_blocks`, a call in which there is no picture makes masks without blocks, as a
trace cannot ask the tensor that says so.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from torch import Tensor
from transformers import PreTrainedModel

from kvc.compiler.hugging_face.reading.architectures import name_of
from kvc.compiler.hugging_face.reading.calls import any_call

_NAME: Final = "blockwise_overlay"
_MASKING: Final = "transformers.masking_utils"
# Only `mm_token_type_ids` put a token of these into a block.
_MODELS: Final = frozenset(
    {
        "gemma4.Gemma4ForConditionalGeneration",
        "gemma4_unified.Gemma4UnifiedForConditionalGeneration",
    }
)


@contextmanager
def without_blocks(model: PreTrainedModel) -> Iterator[None]:
    """Let masks of texts without a picture have no blocks."""
    places: list[ModuleType] = []
    if name_of(model) in _MODELS:
        modules = [sys.modules[_MASKING], sys.modules[type(model).__module__]]
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
    """Stand for a mask of blocks: none of these see each other."""
    return (query == key) & (query != key)
