"""Models over transformers' own caches, whose tensors are also buffers.

In: a tiny model. Out: a module with `prefill` and `decode`. The cache is a plain
attribute, as in `transformers.integrations.executorch`. The keys, values and lengths of
its layers are registered as buffers too, and transformers' code writes them.
"""

from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, StaticCache
from transformers.cache_utils import (
    Cache,
    Fp8QuantizedLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)
from transformers.integrations.executorch import (
    TorchExportableModuleWithHybridCache,
    TorchExportableModuleWithStaticCache,
    get_head_shapes,
)

from kvc.compiler import Method

SLOTS = 24

Call = tuple[str, tuple[Tensor, ...]]  # a method, and its arguments
# What a layer of a static cache keeps, and the names that exporters give it.
_NAMES = {
    "keys": "key_cache", "values": "value_cache",
    "cumulative_length": "cumulative_length",
}  # fmt: skip


class OwnCache(nn.Module):
    def __init__(self, model: PreTrainedModel, cache: Cache) -> None:
        super().__init__()
        self.model, self.cache = model, cache

    def register(self) -> Self:
        heads, width = get_head_shapes(self.model.config.get_text_config())
        dtype, device = self.model.dtype, self.model.device
        self.cache.early_initialization(1, heads, width, dtype, device)
        for i, layer in enumerate(self.cache.layers):
            for name, registered in _NAMES.items():
                self.register_buffer(f"{registered}_{i}", getattr(layer, name), False)
        return self

    def prefill(self, tokens: Tensor) -> Tensor:
        """Append tokens int64 [1, seq]; return the last token's logits [1, vocab]."""
        return self._append(tokens)

    def decode(self, token: Tensor) -> Tensor:
        """Append token int64 [1, 1]; return its logits [1, vocab]."""
        return self._append(token)

    def _append(self, tokens: Tensor) -> Tensor:
        made = self.model(input_ids=tokens, past_key_values=self.cache, use_cache=True)
        return made.logits[:, -1]


def static(model: PreTrainedModel) -> OwnCache:
    """Return a model over the `StaticCache` that its configuration asks for."""
    return OwnCache(model, StaticCache(model.config, max_cache_len=SLOTS)).register()


def hybrid(model: PreTrainedModel) -> OwnCache:
    """Return a model over a `StaticCache` whose sliding layers keep all positions.

    This is what transformers' exporters do, since a `StaticSlidingWindowLayer` also
    counts positions in Python.
    """
    cache = StaticCache(model.config, max_cache_len=SLOTS)
    for i, layer in enumerate(cache.layers):
        if isinstance(layer, StaticSlidingWindowLayer):
            cache.layers[i] = StaticLayer(SLOTS)
    return OwnCache(model, cache).register()


def growing(model: PreTrainedModel) -> OwnCache:
    count = model.config.num_hidden_layers
    return OwnCache(model, Cache(layers=[Fp8QuantizedLayer() for _ in range(count)]))


class _Exported:
    """`prefill` and `decode` of both wrappers, which take positions int64 [seq]."""

    def prefill(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Append tokens int64 [1, seq]; return the last token's logits [1, vocab]."""
        return self.forward(tokens, cache_position=places)[:, -1]

    def decode(self, token: Tensor, places: Tensor) -> Tensor:
        """Append token int64 [1, 1]; return its logits [1, vocab]."""
        return self.forward(token, cache_position=places)[:, -1]


class StaticExported(_Exported, TorchExportableModuleWithStaticCache):
    """transformers' own wrapper for exporting a model over a static cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        model.generation_config.cache_implementation = "static"
        super().__init__(model, batch_size=1, max_cache_len=SLOTS)


class HybridExported(_Exported, TorchExportableModuleWithHybridCache):
    """transformers' wrapper for models with both sliding and full layers."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, batch_size=1, max_cache_len=SLOTS)


def calls(module: nn.Module, tokens: Tensor, first: int) -> Iterator[Call]:
    """Yield the calls that feed tokens int64 [1, length] to a module.

    The first call is a prefill of `first` tokens; each other call decodes one token.
    """
    says_places = not isinstance(module, OwnCache)
    length = tokens.shape[1]
    for begin, end in [(0, first), *((i, i + 1) for i in range(first, length))]:
        given = tokens[:, begin:end]
        places = (torch.arange(begin, end),) if says_places else ()
        yield ("decode" if begin else "prefill", (given, *places))


def methods(module: nn.Module, tokens: Tensor, first: int) -> list[Method]:
    examples = dict(calls(module, tokens[:, : first + 1], first))
    return [Method(name, given, role=name) for name, given in examples.items()]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}
