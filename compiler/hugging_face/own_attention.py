"""Architectures with attention code of their own, beside transformers' interface.

A few older ones multiply, mask and sum in their own modules. In: such a model. Out:
while `adapted` holds, their instances attend by kvc's `attend`, in the place of just
that code; classes and sources stay as they are. Their masks are plainly causal, or a
window that is said here, and biases over positions (ALiBi) become slopes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from kvc.compiler.hugging_face.attention import attend_causally

_Attended = tuple[Tensor, None]


def has_own_attention(model: PreTrainedModel) -> bool:
    """Tell whether a model attends by code of its own that kvc knows."""
    return any(_name(module) in _ADAPTERS for module in model.modules())


@contextmanager
def adapted(model: PreTrainedModel) -> Iterator[None]:
    """Let modules that attend by code of their own attend by kvc's function."""
    with ExitStack() as stack:
        for module in model.modules():
            if _name(module) in _ADAPTERS:
                method, function = _ADAPTERS[_name(module)]
                setattr(module, method, partial(function, module))
                stack.callback(delattr, module, method)
        yield


def _name(module: nn.Module) -> str:
    """Return where a class is from: `gptj.GPTJAttention`, "" for any other package."""
    package, _, family = type(module).__module__.partition(".models.")
    if package != "transformers":
        return ""
    return f"{family.partition('.')[0]}.{type(module).__name__}"


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes of ALiBi (Press et al., 2021) for any number of heads."""
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    between = [2 ** (-8 * (i + 0.5) / whole) for i in range(heads - whole)]
    return slopes + between


def _merged(attended: Tensor) -> Tensor:
    """Return [batch, seq, heads, dim] as [batch, seq, heads * dim]."""
    return attended.flatten(2)


def _plain(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object
) -> _Attended:
    """Stand for an `_attn` of scaled products over heads, in float32."""
    out = attend_causally(module, query.to(value.dtype), key, value)
    return out.transpose(1, 2), None


def _gpt_neo(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object
) -> _Attended:
    """Stand for GPT-Neo's `_attn`: no scale, and a window in local layers."""
    local = module.attention_type == "local"
    window = module.config.window_size if local else None  # type: ignore[union-attr]
    out = attend_causally(module, query, key, value, scale=1.0, window=window)
    return out.transpose(1, 2), None


def _bloom(
    module: nn.Module,
    hidden_states: Tensor,
    residual: Tensor,
    *_: object,
    layer_past: Cache,
    **__: object,
) -> _Attended:
    """Stand for BLOOM's attention: ALiBi of its own slopes."""
    query, key, value = module._reshape(module.query_key_value(hidden_states))
    key, value = layer_past.update(key, value, module.layer_idx)
    slopes = torch.tensor(alibi_slopes(module.num_heads))
    attended = attend_causally(module, query, key, value, slopes=slopes)
    made: Tensor = module.dense(_merged(attended))
    return made + residual, None
