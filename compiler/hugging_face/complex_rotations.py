"""Rotate queries and keys by real numbers, where a model has complex ones.

In: a model whose rotary module makes complex factors, with which its module's
`apply_rotary_emb` multiplies pairs of a head. Out: while `real_rotations` is active,
cosines and sines, side by side, and the same products of pairs.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvc.compiler.hugging_face.architectures import name_of

if TYPE_CHECKING:
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
    from transformers.models.llama4 import modeling_llama4 as llama4

    _Rotary = deepseek_v2.DeepseekV2RotaryEmbedding | llama4.Llama4TextRotaryEmbedding

_Rotated = tuple[Tensor, Tensor]


@contextmanager
def real_rotations(model: PreTrainedModel) -> Iterator[None]:
    """Let rotations that are complex numbers be pairs of real ones.

    A module whose `forward` has been replaced rotates as that says.
    """
    with ExitStack() as stack:
        for module in model.modules():
            axis = _HEADS.get(name_of(module))
            if axis is None or "forward" in vars(module):
                continue
            module.forward = partial(_factors, cast("_Rotary", module))
            stack.callback(delattr, module, "forward")
            source = sys.modules[type(module).__module__]
            stack.callback(setattr, source, _APPLY, getattr(source, _APPLY))
            setattr(source, _APPLY, partial(_rotated, axis))
        yield


def _factors(module: "_Rotary", x: Tensor, position_ids: Tensor) -> Tensor:
    """Return cosines and sines of each pair: float32 [batch, seq, pairs, 2]."""
    angles = position_ids[..., None].float() * module.inv_freq
    factors = torch.stack([angles.cos(), angles.sin()], dim=-1)
    scaled: Tensor = factors * module.attention_scaling
    return scaled


def _rotated(heads: int, query: Tensor, key: Tensor, factors: Tensor) -> _Rotated:
    """Rotate each pair of neighbours in [.., dim], whose axis `heads` is of heads."""
    cos, sin = factors.unsqueeze(heads).unbind(-1)
    return _turned(query, cos, sin), _turned(key, cos, sin)


def _turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = states.float().reshape(*states.shape[:-1], -1, 2).unbind(-1)
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return pairs.flatten(-2).type_as(states)


_APPLY: Final = "apply_rotary_emb"
# The axis of heads in the queries that `apply_rotary_emb` is given.
_HEADS: Final[Mapping[str, int]] = {
    "deepseek_v2.DeepseekV2RotaryEmbedding": 1,
    "llama4.Llama4TextRotaryEmbedding": 2,
}
