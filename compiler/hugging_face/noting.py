"""`NotingCache`: a transformers `Cache` that records what layers put into it.

In: keys and values of one call. Out: the same, as if the cache had been empty, and
their shapes.
"""

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from kvc.compiler.hugging_face.attention import Call, Kept
from kvc.compiler.hugging_face.cache import LayerShape


class NotingCache(Cache):
    """A cache of one call, in which nothing is kept.

    Attributes:
        noted: what each layer put into it.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.noted: dict[int, LayerShape] = {}
        self._call = call

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Note the shapes of keys and values [batch, heads, seq, dim]."""
        heads, key_dim = key_states.shape[1], key_states.shape[3]
        shape = LayerShape(heads, key_dim, value_states.shape[3], key_states.dtype)
        self.noted[layer_idx] = shape
        self._call.kept.append(Kept(layer_idx, key_states, value_states))
        return key_states, value_states
