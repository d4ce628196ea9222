"""What stands for the inside of a cache that a model looks into by itself.

kvc's caches are written and read by transformers' methods for it. In: nothing. Out:
values that a model may ask whether something is there, as it may of the slots of a
static cache, which are always there; one that reads them is refused with its line.
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
    """The keys or values of a layer, for who does not get them from its `update`."""

    def numel(self) -> int:
        """Return that there are some."""
        return 1

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse to be read; what Python itself looks for is not there."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise _refused("keys and values of a layer")

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse to be read."""
        raise _refused("keys and values of a layer")

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> NoReturn:
        """Refuse what torch would compute with it."""
        raise _refused("keys and values of a layer")


class NoLayers(list[CacheLayerMixin]):
    """The layers of a cache that keeps none."""

    def __getitem__(self, index: SupportsIndex | slice) -> NoReturn:
        """Refuse to give one."""
        raise _refused("what a layer keeps")


def _refused(what: str) -> UnsupportedModel:
    reason = f"{running_line()} looks into its cache for {what}, and {ONLY}"
    return UnsupportedModel(model="the model", reason=reason)
