"""Compute recurrent layers of transformers over any number of tokens, from any state.

In: what the mixers of Mamba, Mamba 2, Gated DeltaNet and short convolutions call,
functions of their own modules by these names. Out: while `own_recurrences` is active,
these functions here. transformers' own unroll a loop over tokens or chunks of them,
start from nothing instead of the state before, or know of padding only as factors on
their input. Here a prompt is a `scan`, and padding leaves a row's state as it is.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.nn.functional import pad, silu, softplus
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from kvc.compiler.hugging_face.attention import current_call
from kvc.schema.errors import UnsupportedModel

CHUNK: Final = 64  # tokens of one chunk of products, a power of two

# Arguments of kernels that kvc has not, and which are no tensors.
_TELLING: Final = frozenset({"scale", "z", "initial_state", "initial_states"})

# What is carried, and what a step takes -> what is carried on, and a result.
Step = Callable[[Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]


@contextmanager
def own_recurrences(model: PreTrainedModel) -> Iterator[None]:
    """Let the mixers of a model call these functions in place of their module's."""
    module = sys.modules[type(model).__module__]
    with ExitStack() as stack:
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
        hidden_states: [batch, channels, seq], from the cache: those before it first.
        weight: [channels, kernel].
        bias: [channels].
        activation: the name of a function of transformers, applied to the result.
        others: what says nothing about the result; what may is refused.

    Returns:
        [batch, channels, seq - kernel + 1].
    """
    _check_others(others)
    current_call().take_inputs()  # they are `hidden_states`
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
    """Convolve a single token with the inputs before it, which it joins.

    Args:
        hidden_states: [batch, channels, 1].
        conv_state: [batch, channels, kernel], the last inputs; written.
        weight: [channels, kernel].
        bias: [channels].
        activation: as of `causal_convolution`.
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
        dt: the step of each, [batch, width, seq].
        A: [width, state].
        B: [batch, state, seq].
        C: [batch, state, seq].
        D: [width], of what passes by the state.
        z: [batch, width, seq], gates of the results.
        delta_bias: [width], added to `dt`.
        delta_softplus: whether the sum is made positive by softplus.
        return_last_state: whether to return the state [batch, width, state] as well.
        others: what says nothing about the result; what may is refused.
    """
    _check_others(others)
    dtype = hidden_states.dtype
    hidden_states, dt, B, C = _float32(hidden_states, dt, B, C)  # noqa: N806
    dt = _steps(dt, None if delta_bias is None else delta_bias[:, None], delta_softplus)
    dt = _of_tokens(dt, 2)
    state = _state_before(hidden_states, (hidden_states.shape[1], A.shape[1]))

    def step(before: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        x, step_size, b, c = given
        kept = torch.exp(step_size[:, :, None] * A)
        after = before * kept + (step_size * x)[:, :, None] * b[:, None]
        return after, torch.matmul(after, c[:, :, None])[:, :, 0]

    by_token = [tensor.movedim(2, 0) for tensor in (hidden_states, dt, B, C)]
    last, out = _scan(step, state, by_token)
    out = out.movedim(0, 2)
    if D is not None:
        out = out + hidden_states * D[:, None]
    out = (out if z is None else out * silu(z)).to(dtype)
    return (out, last) if return_last_state else out


def state_update(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what computes a single token, of which padding changes no state.

    Args:
        original: takes the state, the token, `dt` [batch, ...] and more.
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
        current_call().take_recurrent()  # it is `state`
        positive = _of_rows(_steps(dt, dt_bias, dt_softplus))
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
        dt: the step of each, [batch, seq, heads].
        A: [heads].
        B: [batch, seq, groups, state]; heads in a row share a group.
        C: likewise.
        D: [heads], of what passes by the state.
        dt_bias: [heads], added to `dt`.
        dt_softplus: whether the sum is made positive by softplus.
        dt_limit: the least and the greatest step.
        return_final_states: whether to return the state [batch, heads, head_dim,
            state] as well.
        others: what says nothing about the result; what may is refused.
    """
    _check_others(others)
    seq, heads, dtype = *hidden_states.shape[1:3], hidden_states.dtype
    hidden_states, dt, B, C = _float32(hidden_states, dt, B, C)  # noqa: N806
    dt = _of_tokens(_steps(dt, dt_bias, dt_softplus).clamp(*dt_limit), 1)
    key, query = (_for_each_head(tensor, heads // tensor.shape[2]) for tensor in (B, C))
    value = hidden_states * dt[..., None]
    before = _state_before(hidden_states, (heads, value.shape[-1], key.shape[-1]))
    chunks = [_chunked(tensor) for tensor in (query, key, value, dt * A)]
    last, out = _scan(_state_space_chunk, before, chunks)
    out = _joined(out, seq)
    if D is not None:
        out = out + hidden_states * D[:, None]
    out = out.to(dtype)
    return (out, last) if return_final_states else out


def _state_space_chunk(
    before: Tensor, given: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Advance a state [batch, heads, head_dim, state] by a chunk of tokens.

    Args:
        before: the state.
        given: query, key and value [batch, heads, chunk, dim]; the logarithms of what
            tokens leave [batch, heads, chunk].
    """
    query, key, value, g = given
    total, decay = _decay(g)
    out = (query @ key.transpose(-1, -2) * decay) @ value
    out = out + (query * total.exp()[..., None]) @ before.transpose(-1, -2)
    left = key * (total[..., -1:] - total).exp()[..., None]
    kept = total[..., -1].exp()[..., None, None]
    return before * kept + value.transpose(-1, -2) @ left, out


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
        key: likewise.
        value: [batch, seq, heads, value_dim]; heads in a row share a key head.
        g: [batch, seq, heads], logarithms of how much of the state each token leaves.
        beta: [batch, seq, heads], how much of its value each token writes.
        output_final_state: whether to return the state after the last token.
        use_qk_l2norm_in_kernel: whether queries and keys are normalised.
        others: what says nothing about the result; what may is refused.

    Returns:
        [batch, seq, heads, value_dim], and the state if it is asked for.
    """
    _check_others(others)
    seq, shared, dtype = key.shape[1], value.shape[2] // key.shape[2], query.dtype
    query, key, value, g, beta = _float32(query, key, value, g, beta)
    g, beta = _of_tokens(g, 1), _of_tokens(beta, 1)
    if use_qk_l2norm_in_kernel:
        query, key = _normalised(query), _normalised(key)
    query = query * query.shape[-1] ** -0.5
    query, key = (_for_each_head(tensor, shared) for tensor in (query, key))
    chunks = [_chunked(tensor) for tensor in (query, key, value, g, beta)]
    before = _state_before(value, (query.shape[2], query.shape[3], value.shape[3]))
    last, out = _scan(partial(_delta_chunk, _block_pairs()), before, chunks)
    return _joined(out, seq).to(dtype), last if output_final_state else None


def delta_update(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what computes a single token, of which padding changes no state.

    Args:
        original: takes query, key, value, and `g` and `beta` [batch, 1, heads].
    """

    def update(*args: Tensor, g: Tensor, beta: Tensor, **kwargs: object) -> object:
        current_call().take_recurrent()  # it is `initial_state`
        return original(*args, g=_of_tokens(g, 1), beta=_of_tokens(beta, 1), **kwargs)

    return update


def _decay(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is left of a state after tokens of a chunk.

    Args:
        g: [batch, heads, chunk], logarithms of what each leaves.

    Returns:
        The logarithms of what all tokens up to each leave, of the same shape, and what
        those after a token j leave up to a token i, [.., chunk i, chunk j]; 0 before j.
    """
    total = g.cumsum(-1)
    after = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool).triu(1)
    between = total[..., :, None] - total[..., None, :]
    return total, between.masked_fill(after, -torch.inf).exp()


def _delta_chunk(
    pairs: Sequence[Tensor], before: Tensor, given: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Advance a state [batch, heads, key_dim, value_dim] by a chunk of tokens.

    Args:
        pairs: what `_unit_lower_inverse` chooses blocks by.
        before: the state.
        given: query, key and value [batch, heads, chunk, dim]; the logarithms of what
            tokens leave, and what they write of their values [batch, heads, chunk].
    """
    query, key, value, g, beta = given
    total, decay = _decay(g)
    written = key * beta[..., None]
    overlap = (written @ key.transpose(-1, -2) * decay).tril(-1)
    solved = _unit_lower_inverse(overlap, pairs)
    new = solved @ (value * beta[..., None])
    new = new - solved @ (written * total.exp()[..., None]) @ before
    out = (query * total.exp()[..., None]) @ before
    out = out + (query @ key.transpose(-1, -2) * decay) @ new
    left = key * (total[..., -1:] - total).exp()[..., None]
    kept = total[..., -1].exp()[..., None, None]
    return before * kept + left.transpose(-1, -2) @ new, out


def _unit_lower_inverse(below: Tensor, pairs: Sequence[Tensor]) -> Tensor:
    """Return the inverse of `1 + below`, of strictly lower [..., chunk, chunk].

    Blocks of the diagonal are inverted first, then pairs of them: of two, with C below
    their diagonal, the inverse has -inv(B) C inv(A) there. It rounds as substitution
    does, where a series of powers would lose all digits for keys that are alike.
    """
    one, *larger = pairs
    inverse = one - below * larger[0]
    for pair in larger[1:]:
        inverse = inverse - inverse @ (below * pair) @ inverse
    return inverse


def _block_pairs() -> list[Tensor]:
    """Return what `_unit_lower_inverse` chooses blocks by, float32 [chunk, chunk].

    First the diagonal, then for each size of blocks those on the left of the lower ones
    of each pair.
    """
    places = range(CHUNK)
    found = [[[float(i == j) for j in places] for i in places]]
    for block in (2**k for k in range(CHUNK.bit_length() - 1)):
        chosen = [
            [float(i // block == j // block + 1 and i // block % 2) for j in places]
            for i in places
        ]
        found.append(chosen)
    return [torch.tensor(rows) for rows in found]


def _chunked(tensor: Tensor) -> Tensor:
    """Return [batch, seq, heads, ...] as [chunks, batch, heads, chunk, ...].

    Zeros fill what is left: they write nothing and leave all of the state. There is a
    chunk of them alone, so that there is never just one, where torch would ask whether
    there is.
    """
    seq = tensor.shape[1]
    chunks = (seq + CHUNK - 1) // CHUNK + 1
    if not torch.compiler.is_exporting():
        left = (0, 0) * (tensor.dim() - 2) + (0, chunks * CHUNK - seq)
        split = pad(tensor, left).view(tensor.shape[0], -1, CHUNK, *tensor.shape[2:])
        return split.movedim((1, 3), (0, 2))
    # torch cannot prove how quotients go together, so tokens are chosen by number. The
    # result is in one piece: torch would ask how strides of such sizes are ordered.
    tokens = torch.arange(chunks)[:, None] * CHUNK + torch.arange(CHUNK)
    chosen = tensor[:, tokens.clamp(max=seq - 1)]
    missing = (tokens >= seq).view(-1, CHUNK, *[1] * (tensor.dim() - 2))
    return chosen.masked_fill(missing, 0).movedim((1, 3), (0, 2)).contiguous()


def _joined(chunks: Tensor, seq: int) -> Tensor:
    """Return [chunks, batch, heads, chunk, dim] as [batch, seq, heads, dim]."""
    whole = chunks.permute(1, 0, 3, 2, 4).flatten(1, 2)
    if not torch.compiler.is_exporting():
        return whole[:, :seq]
    return whole.index_select(1, torch.arange(seq))


def _for_each_head(tensor: Tensor, shared: int) -> Tensor:
    """Repeat each of the heads of [batch, seq, heads, dim]."""
    if shared == 1:
        return tensor
    repeated = tensor[:, :, :, None].expand(-1, -1, -1, shared, -1)
    return repeated.flatten(2, 3)


def _normalised(tensor: Tensor) -> Tensor:
    return tensor * torch.rsqrt((tensor * tensor).sum(-1, keepdim=True) + 1e-6)


def _check_others(others: Mapping[str, object]) -> None:
    """Check that nothing else that is asked for says what the result is.

    Raises:
        UnsupportedModel: something may.
    """
    for name, found in others.items():
        tells = name in _TELLING or isinstance(found, Tensor)
        if tells and found is not None and name != "position_ids":
            reason = f"a recurrent layer is computed with {name}, unknown to kvc"
            raise UnsupportedModel(model="the model", reason=reason)


def _float32(*tensors: Tensor) -> list[Tensor]:
    """Return tensors as recurrences compute with them, whatever the model's dtype."""
    return [tensor.float() for tensor in tensors]


def _steps(dt: Tensor, bias: Tensor | None, positive: bool) -> Tensor:
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return softplus(dt) if positive else dt


def _of_tokens(tensor: Tensor, axis: int) -> Tensor:
    """Return a tensor with zeros where its tokens, along an axis, are padding."""
    row_lengths = current_call().row_lengths
    if row_lengths is None:
        return tensor
    padding = torch.arange(tensor.shape[axis]) >= row_lengths[:, None]
    shape = [tensor.shape[0], *[1] * (tensor.dim() - 1)]
    shape[axis] = tensor.shape[axis]
    return tensor.masked_fill(padding.view(shape), 0)


def _of_rows(tensor: Tensor) -> Tensor:
    """Return [batch, ...] of a single token, zero for rows whose token is padding."""
    return _of_tokens(tensor[:, None], 1)[:, 0]


def _state_before(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the state [batch, ...] that the layer has just asked for, or zeros."""
    state = current_call().take_recurrent()
    if state is None:
        return torch.zeros(like.shape[0], *shape, dtype=like.dtype)
    return state.clone()


def _scan(step: Step, before: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Run a step over the first axis; return what is left, and all results."""
    if torch.compiler.is_exporting():
        # Tensors of their own: of views, torch asks whether they are all of another.
        last, out = scan(step, before, [tensor.clone() for tensor in given])
        return last, out
    made = []
    for i in range(given[0].shape[0]):
        before, out = step(before, [tensor[i] for tensor in given])
        made.append(out)
    return before, torch.stack(made)


def _instead(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _: function


# By the names of functions in transformers' modules: from one to that in its place.
_OWN: Final[dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "causal_conv1d_fn": _instead(causal_convolution),
    "causal_conv1d_update": _instead(convolution_update),
    "mamba_selective_scan": _instead(selective_scan),
    "mamba_selective_state_update": state_update,
    "mamba2_chunk_scan": _instead(chunk_scan),
    "mamba2_selective_state_update": state_update,
    "torch_chunk_gated_delta_rule": _instead(gated_delta_rule),
    "torch_recurrent_gated_delta_rule": delta_update,
}
