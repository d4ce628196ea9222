"""Adapt layers that have their own code for recurrences and states.

MiniMax stores states in a cache class of its own, and RecurrentGemma stores them in
attributes of modules. In: a model of one of these architectures. Out: while
`adapted_layers` is active, functions of this module replace the `forward` of the
model's recurrent layers. These functions store states in the cache that the model gets,
compute prompts of any length from any state, and leave the state unchanged for padding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from kvc.compiler.hugging_face.reading.model_lines import code_of, name_of
from kvc.compiler.hugging_face.recurrent.chunk_products import (
    chunked,
    joined,
    state_space_chunk,
)
from kvc.compiler.hugging_face.recurrent.recurrences import causal_convolution
from kvc.compiler.hugging_face.recurrent.row_states import (
    is_single,
    of_tokens,
    scanned,
    state_before,
)

if TYPE_CHECKING:
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import (
        RecurrentGemmaRecurrentBlock,
        RecurrentGemmaRglru,
    )

_CACHE: Final = "MiniMaxCache"  # the cache class that MiniMax's module requires
_DECAY: Final = -8.0  # the constant c of Griffin (De et al., 2024, section 2.4)


@contextmanager
def adapted_layers(model: PreTrainedModel) -> Iterator[None]:
    """Let a model's recurrent layers store their states in the cache it gets."""
    with ExitStack() as stack:
        for named in code_of(model):
            own = getattr(named, _CACHE, None)
            if own is None:
                continue
            setattr(named, _CACHE, Cache)
            stack.callback(setattr, named, _CACHE, own)
        for number, module in _numbered(model):
            adapted = partial(_LAYERS[name_of(module)], module, number)
            setattr(module, "forward", adapted)  # noqa: B010  mypy knows no such method
            stack.callback(delattr, module, "forward")
        yield


def _numbered(model: PreTrainedModel) -> Iterator[tuple[int, nn.Module]]:
    for path, module in model.named_modules():
        if name_of(module) in _LAYERS:
            yield next(int(part) for part in path.split(".") if part.isdigit()), module


def _lightning(
    module: "MiniMaxLightningAttention",
    number: int,
    hidden_states: Tensor,
    *_: object,
    past_key_values: Cache,
    **__: object,
) -> tuple[Tensor, Tensor]:
    """Replace MiniMax's linear attention, whose state decays by a constant.

    After a token, the state [batch, heads, value, key] is the previous state times
    `exp(-slope)`, plus the outer product of the token's value and key. The result of
    the token is the product of this state and the token's query.
    """
    seq = hidden_states.shape[1]
    projected = module.act_fn(module.qkv_proj(hidden_states))
    by_head = projected.unflatten(2, (module.num_attention_heads, -1)).float()
    query, key, value = by_head.split(module.head_dim, dim=3)
    slopes = module.slope_rate.view(-1).expand(*key.shape[:3])
    key, left = of_tokens(key, 1), of_tokens(-slopes, 1)
    past_key_values.get_recurrent_state(number)
    before = state_before(value, (key.shape[2], value.shape[3], key.shape[3]))
    if is_single(seq):
        kept = before * left.transpose(1, 2).exp()[..., None]
        last = kept + value.transpose(1, 2).transpose(2, 3) * key.transpose(1, 2)
        out = (query.transpose(1, 2) @ last.transpose(2, 3)).transpose(1, 2)
    else:
        chunks = [chunked(tensor) for tensor in (query, key, value, left)]
        last, out = scanned(state_space_chunk, before, chunks)
        out = joined(out, seq)
    past_key_values.update_recurrent_state(last, number)
    normed = module.norm(out.flatten(2).to(hidden_states.dtype))
    gated = torch.sigmoid(module.output_gate(hidden_states)) * normed
    return module.out_proj(gated), last


def _griffin(
    module: "RecurrentGemmaRecurrentBlock",
    number: int,
    input_states: Tensor,
    position_ids: Tensor,
    *_: object,
    past_key_values: Cache,
    **__: object,
) -> tuple[Tensor, None]:
    """Replace RecurrentGemma's block: a convolution, and a linear recurrence."""
    gate = module.act_fn(module.linear_y(input_states))
    inputs = module.linear_x(input_states).transpose(1, 2)
    before = module.conv1d_width - 1
    inputs = past_key_values.update_conv_state(inputs, number, conv_kernel_size=before)
    weight, bias = module.conv_1d.weight.squeeze(1), module.conv_1d.bias
    convolved = causal_convolution(inputs, weight, bias).transpose(1, 2)
    past_key_values.get_recurrent_state(number)
    last, out = _gated(module.rg_lru, convolved, position_ids)
    past_key_values.update_recurrent_state(last, number)
    made: Tensor = module.linear_out(out.to(gate.dtype) * gate)
    return made, None


def _gated(
    unit: "RecurrentGemmaRglru", given: Tensor, position_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Run a gated linear recurrence (De et al., 2024) token by token.

    Args:
        unit: the module with the weights.
        given: [batch, seq, width], the inputs of all tokens.
        position_ids: int64 [batch, seq]; a text begins at 0.

    Returns:
        The state float32 [batch, width] after the last token, and the results of all
        tokens.
    """
    input_gate = _gate(given, unit.input_gate_weight, unit.input_gate_bias)
    left_gate = _gate(given, unit.recurrent_gate_weight, unit.recurrent_gate_bias)
    left = _DECAY * left_gate * softplus(unit.recurrent_param)
    begins = (position_ids == 0)[..., None]
    scale = torch.sqrt(1 - torch.exp(2 * left)).masked_fill(begins, 1)
    added = of_tokens((given * input_gate * scale).float(), 1)
    kept = of_tokens(left.float(), 1).exp()
    before = state_before(added, (added.shape[2],))
    if is_single(given.shape[1]):
        last = before * kept[:, 0] + added[:, 0]
        return last, last[:, None]

    def step(before: Tensor, token: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        kept, added = token
        after = before * kept + added
        return after, after.clone()

    last, out = scanned(step, before, [kept.transpose(0, 1), added.transpose(0, 1)])
    return last, out.transpose(0, 1)


def _gate(given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return a gate [batch, seq, width]; each head is multiplied by its own matrix."""
    heads, width, _ = weight.shape
    rows = given.reshape(-1, heads, width).transpose(0, 1)
    products = torch.baddbmm(bias[:, None], rows, weight)
    return torch.sigmoid(products.transpose(0, 1).reshape(given.shape))


_LAYERS: Final[Mapping[str, Callable[..., object]]] = {
    "minimax.MiniMaxLightningAttention": _lightning,
    "recurrent_gemma.RecurrentGemmaRecurrentBlock": _griffin,
}
