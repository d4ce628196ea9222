"""Let a model's own code go through sets of texts in the same order in every process.

In: a model. Out: inside `in_order`, `set` in the Python modules of the model's classes
makes sets that are iterated in sorted order. Python orders texts in a set by a number
that is random for each process, and some models compute tables for `set(layer_types)`:
without this the traced operations, and so the bytes of a bundle, would differ.
"""

import builtins
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel


class _LikeSet(type):
    """The type of a class that every set is an instance of, as if it were `set`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, builtins.set)


class _InOrder(set[Any], metaclass=_LikeSet):
    """A set that is iterated in sorted order if it has texts alone."""

    def __iter__(self) -> Iterator[Any]:
        found = list(super().__iter__())
        texts = all(isinstance(item, str) for item in found)
        return iter(sorted(found) if texts else found)


@contextmanager
def in_order(model: PreTrainedModel) -> Iterator[None]:
    """Iterate over sets of texts in sorted order in the code of a model's classes."""
    names = {type(part).__module__ for part in model.modules()}
    modules = [
        vars(sys.modules[name])
        for name in names
        if name in sys.modules and "set" not in vars(sys.modules[name])
    ]
    for module in modules:
        module["set"] = _InOrder
    try:
        yield
    finally:
        for module in modules:
            del module["set"]
