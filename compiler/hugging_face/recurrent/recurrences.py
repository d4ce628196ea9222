"""Compute transformers' recurrent layers over any number of tokens, from any state.

In: recurrent layers of Mamba, Mamba 2, Gated DeltaNet, Kimi and short convolutions,
which call named functions of the Python modules that define them. Out: while
`own_recurrences` is active, these calls run the functions of this module instead.
transformers' own functions unroll a loop over tokens or chunks, start from zeros
instead of the previous state, or treat padding as tokens with inputs of 0. The
functions here run a `scan` over a prompt, and padding leaves a row's state unchanged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from kvc.compiler.hugging_face.reading.calls import current_call
from kvc.compiler.hugging_face.reading.model_lines import code_of
from kvc.compiler.hugging_face.recurrent.chunk_products import (
    block_pairs,
    channel_delta_token,
    chunked,
    delta_chunk,
    joined,
    state_space_chunk,
)
from kvc.compiler.hugging_face.recurrent.row_states import (
    of_tokens,
    scanned,
    state_before,
)
from kvc.schema.errors import UnsupportedModel

# Arguments of kernels that change the result, are not tensors, and are unsupported.
_TELLING: Final = frozenset({"scale", "z", "initial_state", "initial_states"})


@contextmanager
def own_recurrences(model: PreTrainedModel) -> Iterator[None]:
    """Replace the recurrence functions that a model calls by the functions here."""
    with ExitStack() as stack:
        for module in code_of(model):
            for name, adapt in _OWN.items():
                original = getattr(module, name, None)
                if original is not None:
                    setattr(module, name, adapt(original))
                    stack.callback(setattr, module, name, original)
        yield


def causal_convolution(
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **others: object,
) -> Tensor:
    """Convolve each channel with its weights.

    Args:
        hidden_states: [batch, channels, seq], the cached inputs followed by the new
            inputs.
        weight: [channels, kernel].
        bias: [channels].
        activation: the name of a function of transformers, applied to the result.
        others: further arguments; an argument that would change the result is refused.

    Returns:
        The convolved channels, [batch, channels, seq - kernel + 1].
    """
    _check_others(others)
    current_call().take_inputs()  # `hidden_states` are these inputs
    kernel = weight.shape[1]
    seq = hidden_states.shape[2] - kernel + 1
    shifted = [
        hidden_states[..., k : k + seq] * weight[:, k, None] for k in range(kernel)
    ]
    return _activated(sum(shifted[1:], shifted[0]), bias, activation)


def convolution_update(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Append a single token to a convolution's last inputs, and convolve them.

    Args:
        hidden_states: [batch, channels, 1], the input of the token.
        conv_state: [batch, channels, kernel], the last inputs; the function updates
            them.
        weight: [channels, kernel].
        bias: [channels].
        activation: the name of a function, as for `causal_convolution`.
    """
    last = torch.cat([conv_state[..., 1:], hidden_states], dim=-1)
    conv_state.copy_(last)
    return _activated((last * weight).sum(-1, keepdim=True), bias, activation)


def _activated(out: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    out = out if bias is None else out + bias[:, None]
    return out if activation is None else ACT2FN[activation](out)


def selective_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803  the names of the paper, which callers use
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **others: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run a selective state space (Gu and Dao, 2023, algorithm 2), token by token.

    Args:
        hidden_states: [batch, width, seq].
        dt: the step of each token, [batch, width, seq].
        A: [width, state].
        B: [batch, state, seq].
        C: [batch, state, seq].
        D: [width], the factor of the input that bypasses the state.
        z: [batch, width, seq], gates of the results.
        delta_bias: [width], added to `dt`.
        delta_softplus: whether the sum of `dt` and `delta_bias` is made positive by
            softplus.
        return_last_state: whether to return the state [batch, width, state] as well.
        others: further arguments; an argument that would change the result is refused.
    """
    _check_others(others)
    dtype = hidden_states.dtype
    hidden_states, dt, B, C = _float32(hidden_states, dt, B, C)  # noqa: N806
    dt = _steps(dt, None if delta_bias is None else delta_bias[:, None], delta_softplus)
    dt = of_tokens(dt, 2)
    state = state_before(hidden_states, (hidden_states.shape[1], A.shape[1]))

    def step(before: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        x, step_size, b, c = given
        kept = torch.exp(step_size[:, :, None] * A)
        after = before * kept + (step_size * x)[:, :, None] * b[:, None]
        return after, torch.matmul(after, c[:, :, None])[:, :, 0]

    by_token = [tensor.movedim(2, 0) for tensor in (hidden_states, dt, B, C)]
    last, out = scanned(step, state, by_token)
    out = out.movedim(0, 2)
    if D is not None:
        out = out + hidden_states * D[:, None]
    out = (out if z is None else out * silu(z)).to(dtype)
    return (out, last) if return_last_state else out


def state_update(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function for a single token so that padding leaves a state unchanged.

    Args:
        original: a function that takes the state, the token, `dt` [batch, ...] and
            further arguments.
    """

    def update(
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        *args: Tensor,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        **kwargs: object,
    ) -> Tensor:
        current_call().take_recurrent()  # `state` is this state
        positive = of_tokens(_steps(dt, dt_bias, dt_softplus)[:, None], 1)[:, 0]
        return original(state, hidden_states, positive, *args, **kwargs)

    return update


def chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **others: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run the state spaces of Mamba 2 (Dao and Gu, 2024) by chunks of tokens.

    Args:
        hidden_states: [batch, seq, heads, head_dim].
        dt: the step of each token, [batch, seq, heads].
        A: [heads].
        B: [batch, seq, groups, state]; neighboring heads share a group.
        C: as `B`.
        D: [heads], the factor of the input that bypasses the state.
        dt_bias: [heads], added to `dt`.
        dt_softplus: whether the sum of `dt` and `dt_bias` is made positive by softplus.
        dt_limit: the least and the greatest step.
        return_final_states: whether to return the state [batch, heads, head_dim, state]
            as well.
        others: further arguments; an argument that would change the result is refused.
    """
    _check_others(others)
    seq, heads, dtype = *hidden_states.shape[1:3], hidden_states.dtype
    hidden_states, dt, B, C = _float32(hidden_states, dt, B, C)  # noqa: N806
    dt = of_tokens(_steps(dt, dt_bias, dt_softplus).clamp(*dt_limit), 1)
    key, query = (_for_each_head(tensor, heads // tensor.shape[2]) for tensor in (B, C))
    value = hidden_states * dt[..., None]
    before = state_before(hidden_states, (heads, value.shape[-1], key.shape[-1]))
    chunks = [chunked(tensor) for tensor in (query, key, value, dt * A)]
    last, out = scanned(state_space_chunk, before, chunks)
    out = joined(out, seq)
    if D is not None:
        out = out + hidden_states * D[:, None]
    out = out.to(dtype)
    return (out, last) if return_final_states else out


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **others: object,
) -> tuple[Tensor, Tensor | None]:
    """Run the gated delta rule (Yang et al., 2024) by chunks of tokens.

    Args:
        query: [batch, seq, key_heads, key_dim].
        key: as `query`.
        value: [batch, seq, heads, value_dim]; neighboring heads share a key head.
        g: [batch, seq, heads], logarithms of the state's decay by each token.
        beta: [batch, seq, heads], the fraction of each token's value that is written.
        output_final_state: whether to return the state after the last token.
        use_qk_l2norm_in_kernel: whether queries and keys are normalized.
        others: further arguments; an argument that would change the result is refused.

    Returns:
        The results of the tokens, [batch, seq, heads, value_dim]; and the state after
        the last token, None if it is not requested.
    """
    _check_others(others)
    seq, shared, dtype = key.shape[1], value.shape[2] // key.shape[2], query.dtype
    given = query, key, value, g, beta
    query, key, value, g, beta = _delta_operands(*given, use_qk_l2norm_in_kernel)
    query, key = (_for_each_head(tensor, shared) for tensor in (query, key))
    chunks = [chunked(tensor) for tensor in (query, key, value, g, beta)]
    before = state_before(value, (query.shape[2], query.shape[3], value.shape[3]))
    last, out = scanned(partial(delta_chunk, block_pairs()), before, chunks)
    return joined(out, seq).to(dtype), last if output_final_state else None


def _delta_operands(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, normalised: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the five operands of a delta rule in float32, in the given order.

    Queries are scaled; `g` and `beta` are zeros for padding.
    """
    query, key, value, g, beta = _float32(query, key, value, g, beta)
    if normalised:
        query, key = _normalised(query), _normalised(key)
    query = query * query.shape[-1] ** -0.5
    return query, key, value, of_tokens(g, 1), of_tokens(beta, 1)


def channel_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **others: object,
) -> tuple[Tensor, Tensor | None]:
    """Run the delta rule of Kimi Linear (arXiv 2510.26692) token by token.

    Arguments and results are as for `gated_delta_rule`, except that `g` has a decay for
    each channel of a key, [batch, seq, heads, key_dim].
    """
    _check_others(others)
    dtype = query.dtype
    given = query, key, value, g, beta
    query, key, value, g, beta = _delta_operands(*given, use_qk_l2norm_in_kernel)
    before = state_before(value, (*key.shape[2:], value.shape[3]))
    tokens = [tensor.transpose(0, 1) for tensor in (query, key, value, g, beta)]
    last, out = scanned(channel_delta_token, before, tokens)
    return out.transpose(0, 1).to(dtype), last if output_final_state else None


def delta_update(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function for a single token so that padding leaves a state unchanged.

    Args:
        original: a function that takes query, key and value, and `g` and `beta` [batch,
            1, heads].
    """

    def update(*args: Tensor, g: Tensor, beta: Tensor, **kwargs: object) -> object:
        current_call().take_recurrent()  # `initial_state` is this state
        return original(*args, g=of_tokens(g, 1), beta=of_tokens(beta, 1), **kwargs)

    return update


def _for_each_head(tensor: Tensor, shared: int) -> Tensor:
    """Repeat each head of [batch, seq, heads, dim] `shared` times in a row."""
    if shared == 1:
        return tensor
    return tensor[:, :, :, None].expand(-1, -1, -1, shared, -1).flatten(2, 3)


def _normalised(tensor: Tensor) -> Tensor:
    return tensor * torch.rsqrt((tensor * tensor).sum(-1, keepdim=True) + 1e-6)


def _check_others(others: Mapping[str, object]) -> None:
    """Check that none of the further arguments changes a function's result.

    Raises:
        UnsupportedModel: an argument can change the result.
    """
    for name, found in others.items():
        tells = name in _TELLING or isinstance(found, Tensor)
        if tells and found is not None and name != "position_ids":
            reason = f"a recurrent layer is computed with {name}, unknown to kvc"
            raise UnsupportedModel(model="the model", reason=reason)


def _float32(*tensors: Tensor) -> list[Tensor]:
    """Return tensors in float32, the dtype in which recurrences are computed."""
    return [tensor.float() for tensor in tensors]


def _steps(dt: Tensor, bias: Tensor | None, positive: bool) -> Tensor:
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return softplus(dt) if positive else dt


def _instead(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _: function


# Replacements by the names of functions in transformers' modules.
_OWN: Final[dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "causal_conv1d_fn": _instead(causal_convolution),
    "causal_conv1d_update": _instead(convolution_update),
    "mamba_selective_scan": _instead(selective_scan),
    "mamba_selective_state_update": state_update,
    "mamba2_chunk_scan": _instead(chunk_scan),
    "mamba2_selective_state_update": state_update,
    "chunk_kimi_delta_attention": _instead(channel_delta_rule),
    "recurrent_kimi_delta_attention": delta_update,
    "torch_chunk_gated_delta_rule": _instead(gated_delta_rule),
    "torch_recurrent_gated_delta_rule": delta_update,
}
