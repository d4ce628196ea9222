"""Attend over latents: keys and values of all heads in one row that is narrow.

Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) caches of each
token a latent, of which the keys and values of all heads are products, and a key that
turns with the position, which all heads share. transformers puts these two into its
cache and expands all of it, in a module's `expand_kv`. In: such a model. Out: while
`unexpanded` is active, caches reach kvc's attention as they are; queries are projected
into the space of latents instead, and so is the result out of it. That is the same by
the order of products, and reads each cached number once for all heads.
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
    """What transformers says of an attention over latents.

    Attributes:
        layer_idx: the number of its cache.
        kv_b_proj: from a latent to each head's key, as far as it does not turn, and
            value: weight [heads * (qk_nope_head_dim + v_head_dim), kv_lora_rank].
        num_heads: of queries, keys and values alike.
        qk_nope_head_dim: how much of a head's query and key does not turn.
    """

    layer_idx: int
    kv_b_proj: nn.Linear
    num_heads: int
    qk_nope_head_dim: int


def is_latent(module: object) -> TypeGuard[LatentAttention]:
    """Tell whether a module expands latents to keys and values."""
    return callable(getattr(type(module), _EXPAND, None))


def latent_layers(model: PreTrainedModel) -> frozenset[int]:
    """Return the numbers of the caches that hold latents."""
    return frozenset(m.layer_idx for m in model.modules() if is_latent(m))


def absorbed(module: LatentAttention, query: Tensor) -> Tensor:
    """Return queries [batch, heads, seq, qk_head_dim] as queries of latents.

    Returns:
        [batch, heads, seq, kv_lora_rank + what turns].
    """
    key, _ = _by_head(module)
    fixed, turning = query.tensor_split([module.qk_nope_head_dim], dim=-1)
    return torch.cat([fixed @ key, turning], dim=-1)


def unabsorbed(module: LatentAttention, attended: Tensor) -> Tensor:
    """Return sums of latents [batch, heads, seq, kv_lora_rank] as sums of values."""
    _, value = _by_head(module)
    return attended @ value.transpose(1, 2)


def _by_head(module: LatentAttention) -> tuple[Tensor, Tensor]:
    """Return what makes keys and values of latents: [heads, dim, kv_lora_rank]."""
    weight = module.kv_b_proj.weight
    weight = weight.view(module.num_heads, -1, weight.shape[1])
    key, value = weight.tensor_split([module.qk_nope_head_dim], dim=1)
    return key, value


@contextmanager
def unexpanded(model: PreTrainedModel) -> Iterator[None]:
    """Let caches of latents reach attention as they are.

    Raises:
        UnsupportedModel: an indexer chooses what a query sees of them, or more than a
            matrix makes keys and values of them.
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
    """Check that keys and values are products with the matrix that kvc reads.

    An adapter in the place of a linear layer has the weight of what it adapts.
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
