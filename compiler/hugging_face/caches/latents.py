"""Attend over latents: one narrow cache row for the keys and values of all heads.

Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) caches for each
token a latent, from which the keys and values of all heads are projected, and a rotary
key that all heads share. transformers caches latents and rotary keys; in each call, a
module's `expand_kv` projects the whole cache to keys and values. In: a model with this
attention. Out: while `unexpanded` is active, kvc's attention gets the latents
themselves; queries are projected into the latent space instead, and the attended
latents are projected to values. The result is the same, since matrix products are
associative. Each cached number is read only once for all heads.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.schema.errors import UnsupportedModel

_EXPAND: Final = "expand_kv"


class LatentAttention(Protocol):
    """An attention over latents in transformers.

    Attributes:
        layer_idx: the number of the layer's cache.
        kv_b_proj: projects a latent to each head's non-rotary key part and value:
            weight [heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank].
        num_heads: the number of heads of queries, keys and values.
        qk_nope_head_dim: the width of the non-rotary part of a query or key.
    """

    layer_idx: int
    kv_b_proj: nn.Linear
    num_heads: int
    qk_nope_head_dim: int


def is_latent(module: object) -> TypeGuard[LatentAttention]:
    """Tell whether a module projects latents to keys and values."""
    return callable(getattr(type(module), _EXPAND, None))


def latent_layers(model: PreTrainedModel) -> frozenset[int]:
    """Return the numbers of the caches that hold latents."""
    return frozenset(m.layer_idx for m in model.modules() if is_latent(m))


def absorbed(module: LatentAttention, query: Tensor) -> Tensor:
    """Project queries [batch, heads, seq, qk_head_dim] into the latent space.

    Returns:
        [batch, heads, seq, kv_lora_rank + rotary width].
    """
    key, _ = _by_head(module)
    fixed, turning = query.tensor_split([module.qk_nope_head_dim], dim=-1)
    return torch.cat([fixed @ key, turning], dim=-1)


def unabsorbed(module: LatentAttention, attended: Tensor) -> Tensor:
    """Project sums of latents [batch, heads, seq, kv_lora_rank] to sums of values."""
    _, value = _by_head(module)
    return attended @ value.transpose(1, 2)


def _by_head(module: LatentAttention) -> tuple[Tensor, Tensor]:
    """Return each head's projections of latents to keys and to values.

    Both are [heads, dim, kv_lora_rank].
    """
    weight = module.kv_b_proj.weight
    weight = weight.view(module.num_heads, -1, weight.shape[1])
    key, value = weight.tensor_split([module.qk_nope_head_dim], dim=1)
    return key, value


@contextmanager
def unexpanded(model: PreTrainedModel) -> Iterator[None]:
    """Pass latent caches to attention without projecting them to keys and values.

    Raises:
        UnsupportedModel: an indexer selects the visible keys of queries, or keys and
            values are more than a matrix product of latents.
    """
    with ExitStack() as stack:
        for module in model.modules():
            if is_latent(module):
                _check_sight(model, module)
                _check_product(model, module)
                setattr(module, _EXPAND, _as_they_are)
                stack.callback(delattr, module, _EXPAND)
        yield


def _check_sight(model: PreTrainedModel, module: LatentAttention) -> None:
    if getattr(module, "indexer", None) is not None:
        reason = (
            "an indexer chooses by their content which tokens a query of "
            f"{type(module).__name__} sees (sparse attention), and kvc's attention "
            "knows only windows"
        )
        raise UnsupportedModel(model=type(model).__name__, reason=reason)


def _check_product(model: PreTrainedModel, module: LatentAttention) -> None:
    """Check that keys and values are products of latents with `kv_b_proj.weight`.

    If an adapter replaces the linear layer `kv_b_proj`, its `weight` is that of the
    replaced layer, but the adapter computes other products.
    """
    expand, linear = getattr(module, _EXPAND), module.kv_b_proj
    own = not expand.__module__.startswith("transformers.models.")
    plain = getattr(linear.forward, "__func__", None) is nn.Linear.forward
    hooked = linear._forward_hooks or linear._forward_pre_hooks
    if own or not plain or hooked or linear.bias is not None:
        reason = (
            f"{type(module).__name__} makes keys and values of latents by more than "
            "the matrix of kv_b_proj (an adapter, a bias, a hook, or code of its own), "
            "and kvc reads only that; merge adapters and remove hooks first"
        )
        raise UnsupportedModel(model=type(model).__name__, reason=reason)


def _as_they_are(latent: Tensor, turning: Tensor) -> tuple[Tensor, Tensor]:
    return latent, turning
