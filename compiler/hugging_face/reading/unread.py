"""Placeholders for the content of a cache that a model reads directly.

A model must use kvc's caches only through the methods of transformers' caches. If a
model accesses the content of a cache directly, it gets a placeholder of this module.
The placeholder only reports that slots exist, as the slots of a static cache always do.
A model that reads the content of a placeholder is refused; the error names the line of
the model's code.
"""

from typing import Final, NoReturn, SupportsIndex

from transformers.cache_utils import CacheLayerMixin

from kvc.compiler.hugging_face.reading.model_lines import running_line
from kvc.schema.errors import UnsupportedModel

ONLY: Final = (
    "kvc's caches hold keys, values and states of layers, by transformers' interface "
    "for these"
)


class Unread:
    """A placeholder for a layer's keys or values, for code that reads them directly."""

    def numel(self) -> int:
        """Return 1, which tells the model that the tensor is not empty."""
        return 1

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse any attribute, except special attributes that Python looks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refused("keys and values of a layer")

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse to return any elements."""
        raise _refused("keys and values of a layer")

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> NoReturn:
        """Refuse every torch function."""
        raise _refused("keys and values of a layer")


class NoLayers(list[CacheLayerMixin]):
    """A placeholder for the list of a cache's layers, which must not be accessed."""

    def __getitem__(self, index: SupportsIndex | slice) -> NoReturn:
        """Refuse to return a layer."""
        raise _refused("the content of a layer")


def _refused(what: str) -> UnsupportedModel:
    reason = f"{running_line()} looks into its cache for {what}, and {ONLY}"
    return UnsupportedModel(model="the model", reason=reason)
