"""Adapt RWKV (Peng et al., 2023, version 4), whose model has states without a cache.

In: a model of RWKV. Out: while `adapted_rwkv` is active, functions of this module
replace the `forward` of the model's layers. The functions get a cache as the argument
`state`. They store two things in the cache: the previous token, which each layer mixes
with the current token, and the sums that replace attention. transformers' own functions
unroll a loop over tokens, and divide weights in place when the model first runs. The
functions of this module divide results instead, and leave weights unchanged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from kvc.compiler.hugging_face.reading.calls import current_call
from kvc.compiler.hugging_face.reading.model_lines import name_of
from kvc.compiler.hugging_face.recurrent.row_states import (
    is_single,
    of_tokens,
    scanned,
    state_before,
)

if TYPE_CHECKING:
    from transformers.models.rwkv.modeling_rwkv import (
        RwkvFeedForward,
        RwkvModel,
        RwkvSelfAttention,
    )

_MODEL: Final = "rwkv.RwkvModel"
_TIME, _CHANNEL = range(2)  # index of a layer's two mixed tokens
_LEAST: Final = -1e38  # greatest exponent before the first token


def is_rwkv(model: PreTrainedModel) -> bool:
    """Tell whether a model is RWKV."""
    return any(name_of(module) == _MODEL for module in model.modules())


@contextmanager
def adapted_rwkv(model: PreTrainedModel) -> Iterator[None]:
    """Let layers of RWKV keep their states in the model's cache."""
    with ExitStack() as stack:
        for module in model.modules():
            if name_of(module) == _MODEL:
                _adapt(module, stack)  # type: ignore[arg-type]
        yield


def _adapt(model: "RwkvModel", stack: ExitStack) -> None:
    rescaled, every = model.layers_are_rescaled, model.config.rescale_every
    for number, block in enumerate(model.blocks):
        scale = 1.0 if rescaled or every <= 0 else 0.5 ** (number // every)
        for module in block.modules():
            function = _LAYERS.get(name_of(module))
            if function is not None:
                _replace(module, partial(function, module, number, scale), stack)
    model.layers_are_rescaled = True  # makes the model halve the layers' inputs
    stack.callback(setattr, model, "layers_are_rescaled", rescaled)


def _replace(module: nn.Module, forward: object, stack: ExitStack) -> None:
    setattr(module, "forward", forward)  # noqa: B010  mypy knows no such method
    stack.callback(delattr, module, "forward")


def _mix_times(
    module: "RwkvSelfAttention",
    number: int,
    scale: float,
    hidden: Tensor,
    state: Cache,
    **_: object,
) -> tuple[Tensor, Cache]:
    """Replace attention by a sum over all tokens with decaying weights.

    Args:
        module: the module with the weights.
        number: number of the layer.
        scale: a factor on the result; transformers divides the weights instead.
        hidden: [batch, seq, width], the inputs of all tokens.
        state: the cache, which has the states of all layers.
    """
    shifted = _tokens_before(state, number, _TIME, hidden)
    key = module.key(_mixed(hidden, shifted, module.time_mix_key))
    value = module.value(_mixed(hidden, shifted, module.time_mix_value))
    gate = module.receptance(_mixed(hidden, shifted, module.time_mix_receptance))
    state.get_recurrent_state(number)
    last, sums = _decaying(module, key.float(), value.float())
    state.update_recurrent_state(last, number)
    made = module.output(torch.sigmoid(gate) * sums.to(value.dtype))
    return _scaled(made, scale), state


def _mix_channels(
    module: "RwkvFeedForward",
    number: int,
    scale: float,
    hidden: Tensor,
    state: Cache,
) -> tuple[Tensor, Cache]:
    """Replace the feed-forward layer, which also uses the previous token."""
    shifted = _tokens_before(state, number, _CHANNEL, hidden)
    key = module.key(_mixed(hidden, shifted, module.time_mix_key))
    gate = module.receptance(_mixed(hidden, shifted, module.time_mix_receptance))
    made = torch.sigmoid(gate) * module.value(torch.square(torch.relu(key)))
    return _scaled(made, scale), state


def _tokens_before(cache: Cache, number: int, which: int, hidden: Tensor) -> Tensor:
    """Return the token before each token, [batch, seq, width]; store the last token."""
    inputs = cache.update_conv_state(
        hidden.transpose(1, 2), number, state_idx=which, conv_kernel_size=1
    )
    current_call().take_inputs()  # `inputs` are these inputs
    return inputs[..., :-1].transpose(1, 2)


def _mixed(hidden: Tensor, shifted: Tensor, part: Tensor) -> Tensor:
    return hidden * part + shifted * (1 - part)


def _scaled(made: Tensor, scale: float) -> Tensor:
    return made if scale == 1 else made * scale


def _decaying(
    module: "RwkvSelfAttention", key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the state after all tokens, and the mean of values up to each token.

    A state float32 [batch, 3, width] has a weighted sum of values, a sum of weights and
    the greatest exponent so far. The two sums are divided by e to the power of this
    exponent. The state is zero before the first token.

    Args:
        module: the module with the decay of weights and the current token's weight.
        key: [batch, seq, width], the logarithms of weights.
        value: [batch, seq, width], the values of all tokens.
    """
    first, decay = module.time_first.float(), -torch.exp(module.time_decay.float())

    def step(before: Tensor, token: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        key, value, *counts = token
        values, weights, greatest = before.unbind(1)
        greatest = greatest.masked_fill(weights == 0, _LEAST)
        seen, total, _ = _added(values, weights, greatest, key + first, value)
        parts = _added(values, weights, greatest + decay, key, value)
        after = torch.cat(
            [part[:, None] for part in parts], 1
        )  # not a view of another tensor
        for real in counts:
            after = torch.where(real[:, None], after, before)
        return after, seen / total

    before = state_before(key, (3, key.shape[2]))
    tokens = [tensor.transpose(0, 1) for tensor in (key, value, *_real(key))]
    if is_single(key.shape[1]):
        last, out = step(before, [tensor[0] for tensor in tokens])
        return last, out[:, None]
    last, out = scanned(step, before, tokens)
    return last, out.transpose(0, 1)


def _real(key: Tensor) -> list[Tensor]:
    """Return whether each token is real, as a list with one bool [batch, seq, 1].

    The list is empty if all tokens are real.
    """
    if current_call().row_lengths is None:
        return []
    return [of_tokens(torch.ones(key.shape[0], key.shape[1], 1, dtype=torch.bool), 1)]


def _added(
    values: Tensor, weights: Tensor, greatest: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a token to the sums of values and of weights.

    Returns:
        The two sums, and the greatest exponent, by whose power of e they are divided.
    """
    reached = torch.maximum(greatest, key)
    kept, new = torch.exp(greatest - reached), torch.exp(key - reached)
    return kept * values + new * value, kept * weights + new, reached


_LAYERS: Final[Mapping[str, Callable[..., object]]] = {
    "rwkv.RwkvSelfAttention": _mix_times,
    "rwkv.RwkvFeedForward": _mix_channels,
}
