"""Models without heads: the parts that transformers leaves out, and their weights.

`has_pooler`: a class of transformers -> whether models of the class can be made without
a pooler. `unused`: a model and the names in a checkpoint -> the names of tensors that
belong to parts which the model was made without.
"""

import inspect
from collections.abc import Iterable
from typing import Final

from transformers import PreTrainedModel

POOLER: Final = "add_pooling_layer"
_POOLER: Final = "pooler"


def has_pooler(kind: type[PreTrainedModel]) -> bool:
    """Tell whether models of a class can be made without the pooler of a head."""
    return POOLER in inspect.signature(kind.__init__).parameters


def unused(
    model: PreTrainedModel, names: Iterable[str], headless: bool
) -> frozenset[str]:
    """Return the names of a checkpoint's tensors that belong to no part of a model.

    Args:
        model: a model without a head.
        names: names of the checkpoint's tensors.
        headless: whether the checkpoint is of a model with a head. If any name in the
            checkpoint then begins with the base model's prefix, each name without the
            prefix belongs to the head.
    """
    prefix, found = f"{model.base_model_prefix}.", set(names)
    pooler = f"{_POOLER}."
    left = set[str]()
    if has_pooler(type(model)) and getattr(model, _POOLER, None) is None:
        left |= {n for n in found if n.removeprefix(prefix).startswith(pooler)}
    if headless and any(name.startswith(prefix) for name in found):
        left |= {name for name in found if not name.startswith(prefix)}
    return frozenset(left)
