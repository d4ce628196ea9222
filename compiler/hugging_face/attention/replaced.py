"""Replace transformers' attention and masks by `kvc::attention`.

In: the arguments that a model passes to attention and mask functions while a method of
kvc runs. Out: `kvc::attention` over the cache's valid part. `attend` and `sight` are
registered under the same name with transformers' public interfaces for attention and
masks; they read the state of the call from `calls.py`. No mask is made: `sight` only
finds the visible keys of queries.

A model with an encoder has three kinds of attention: the encoder attends among all its
inputs; the decoder attends over the cache of its own tokens, and over the cross cache,
which holds keys and values of the encoder's result.
"""

from typing import Final

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from kvc.compiler.hugging_face.attention.attention_masks import MaskStandIn
from kvc.compiler.hugging_face.attention.picture_masks import find_around_picture
from kvc.compiler.hugging_face.attention.windows import (
    ALL,
    MaskFunction,
    find_both_ways,
    find_sight,
    in_chunk,
    sees_all,
)
from kvc.compiler.hugging_face.caches.latents import absorbed, is_latent, unabsorbed
from kvc.compiler.hugging_face.caches.narrowed import window_over
from kvc.compiler.hugging_face.reading.calls import (
    Kept,
    ModelCall,
    any_call,
    current_call,
)
from kvc.schema.errors import UnsupportedModel

NAME: Final = "kvc"

# Tensor arguments of attention that only other implementations use.
_SAYING_NOTHING: Final = frozenset(
    {"position_ids", "cache_position", "input_ids", "token_type_ids"}
)


def register() -> None:
    """Register kvc's attention and mask functions; repeated calls are harmless."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sight)


def sight(
    *,
    mask_function: MaskFunction,
    config: object = None,
    attention_mask: object = None,
    **_: object,
) -> MaskStandIn:
    """Return the visible keys of a mask, which take the place of the mask.

    If a model has made a mask already and passes it to a model inside, the mask is
    returned unchanged, as transformers' own function does.

    Raises:
        UnsupportedModel: the mask is neither causal, nor a causal window, nor chunks,
            nor the full mask of an encoder.
    """
    if isinstance(attention_mask, MaskStandIn):
        return attention_mask
    call = any_call()
    if call is not None and call.uncached:
        return find_both_ways(mask_function, "the model")
    if call is not None and call.picture is not None:
        count = int(call.length - call.start)
        return find_around_picture(mask_function, call.picture, count, "the model")
    encoded = call is not None and call.heard is not None
    crossing = encoded or getattr(config, "is_decoder", None) is True
    # A decoder that could have an encoder makes such a mask without using it.
    if crossing and sees_all(mask_function):
        return MaskStandIn(None, whole=True)
    try:
        return find_sight(mask_function, "the model")
    except UnsupportedModel as error:
        if encoded or getattr(config, "is_decoder", None) is not False:
            raise
        reason = (
            f"{error.reason}; an encoder is causal with is_decoder=True in its config"
        )
        raise UnsupportedModel(model="the model", reason=reason) from error


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: MaskStandIn | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """Attend over a cache, as an attention function of transformers does.

    Args:
        module: the attention module of a layer.
        query: [batch, heads, seq, head_dim].
        key: the whole cache of keys, [batch, kv_heads, capacity, head_dim].
        value: the whole cache of values, [batch, kv_heads, capacity, value_dim].
        attention_mask: the result of `sight`.
        dropout: 0 in evaluation mode.
        scaling: factor on the scores; None: 1 / sqrt(head_dim).
        sliding_window: not used: the mask decides which keys a query sees, as in eager
            mode.
        softcap: the argument `softcap` of `kvc::attention`.
        s_aux: sink logits [heads].
        position_bias: [1, heads, seq, capacity], added to scores (T5); only in models
            with an encoder.
        others: further arguments; a tensor that can change the result is refused.

    Returns:
        The attended values [batch, seq, heads, value_dim], and None in place of the
        attention weights.

    Raises:
        UnsupportedModel: the keys are not those of a cache, or a mask or setting is
            unknown to kvc.
    """
    call = current_call()
    if call.uncached:
        others["position_bias"] = position_bias
        seen = _seen_among(module, attention_mask, others)
        given = query, key, value, scaling, seen, softcap, s_aux
        return attend_among(*given), None
    kept = _find_kept(call, module, key, value)
    whole = kept is None or kept.cross
    if call.heard is None:  # rows may have different positions, a bias has one
        others["position_bias"] = position_bias
    seen = _seen(module, attention_mask, whole)
    _check_others(module, others, whole)
    if whole:
        return _attend_to_all(
            kept, query, key, value, scaling, softcap, s_aux, position_bias
        ), None
    if call.picture is not None:
        call.joined.append(seen.joined)
    attended = attend_causally(
        module, query, key, value, scaling, seen.window, softcap=softcap, sinks=s_aux,
        chunk=seen.chunk, bias=position_bias,
    )  # fmt: skip
    return attended, None


def attend_to_encoded(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Attend to all positions of an encoder's result.

    The arguments are as for `attend`.

    Returns:
        The attended values, [batch, seq, heads, value_dim].
    """
    kept = _find_kept(current_call(), module, key, value)
    assert kept is not None, "the decoder has put them there"
    return _attend_to_all(kept, query, key, value, scale, None, None, None)


def _attend_to_all(
    kept: Kept | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Attend to all of an encoder's inputs, or to all of the encoder's result.

    `kept` is the cross cache, or None in the encoder itself. The other arguments are as
    for `attend`.

    Returns:
        The attended values, [batch, seq, heads, value_dim].
    """
    call = current_call()
    if kept is None:
        return attend_among(query, key, value, scale, ALL, softcap, sinks, bias)
    assert call.heard is not None
    call.crossed += 1
    attended: Tensor = torch.ops.kvc.attention(
        query, key, value, call.heard, scale=scale, causal=False, softcap=softcap,
        mask=bias, sinks=sinks,
    )  # fmt: skip
    return attended.transpose(1, 2).contiguous()


def attend_among(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    seen: MaskStandIn = ALL,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend among the tokens of a call, without padding.

    `seen` tells which tokens each token sees. `bias` [batch or 1, heads or 1, seq, seq]
    is added to scores. The other arguments are as for `attend` and `kvc::attention`.

    Returns:
        The attended values, [batch, seq, heads, value_dim]; zeros for padding.
    """
    call = current_call()
    call.among += 1
    valid = call.row_lengths
    if valid is None:
        valid = torch.full((key.shape[0],), key.shape[2])
    attended: Tensor = torch.ops.kvc.attention(
        query, key, value, valid, scale=scale, causal=seen.ahead == 0,
        window_left=None if seen.window is None else seen.window - 1,
        window_right=seen.ahead if seen.ahead else None, softcap=softcap, mask=bias,
        sinks=sinks, row_lengths=call.row_lengths,
    )  # fmt: skip
    return attended.transpose(1, 2).contiguous()


def attend_causally(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    window: int | None = None,
    slopes: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    chunk: int | None = None,
    part: slice = slice(None),
    bias: Tensor | None = None,
) -> Tensor:
    """Attend from each position to all positions up to it, or to the last `window`.

    A window that the caller of `export_hf` asked for hides more positions. If the
    tokens of a call are bidirectional, each token also sees the later tokens of the
    call.

    `chunk` is as for `MaskStandIn`. `part` selects the elements of each key that are
    multiplied with the query. `bias` [batch or 1, heads, seq, slots] is added to
    scores. The other arguments are as for `attend` and `kvc::attention`.

    Returns:
        The attended values, [batch, seq, heads, value_dim].

    Raises:
        UnsupportedModel: the keys are not those of a cache, or a ring lacks keys.
    """
    call = current_call()
    kept = _find_kept(call, module, key, value)
    assert kept is not None, "an encoder's attention is not causal"
    if is_latent(module):
        query = absorbed(module, query)
        key, value = _latents(kept), key
    # The mask for chunks is by position, not by the slots of a ring.
    call.windows.append((kept.layer, window if chunk is None else None))
    moving = "" if bias is None else "a bias over positions"
    seen = window_over(module, kept, window, "chunks of the text" if chunk else moving)
    mask = bias
    if chunk is not None and kept.earlier:
        mask = in_chunk(call.start, chunk, query.shape[2], key.shape[2])
    attended: Tensor = torch.ops.kvc.attention(
        query,
        key[..., part],
        value,
        call.length,
        scale=scale,
        causal=not call.together,
        window_left=None if seen is None else seen.size - 1,
        softcap=softcap,
        mask=mask,
        slopes=slopes,
        sinks=sinks,
        layout="linear" if kept.window is None else "circular",
        row_lengths=call.row_lengths,
        keep=0 if seen is None else seen.keep,
    )
    if is_latent(module):
        attended = unabsorbed(module, attended)
    return attended.transpose(1, 2).contiguous()


def _latents(kept: Kept) -> Tensor:
    """Return a layer's latents, with the shared keys after them.

    Returns:
        [batch, 1, slots, dim].
    """
    if kept.latents is None:  # of a cache that keeps nothing
        return torch.cat([kept.keys, kept.values], dim=-1)
    return kept.latents


def _find_kept(
    call: ModelCall, module: nn.Module, key: Tensor, value: Tensor
) -> Kept | None:
    """Return the caches that hold the given keys and values; None within an encoder.

    Raises:
        UnsupportedModel: no cache holds the keys and values.
    """
    for kept in call.kept:
        if key is kept.keys and value is kept.values:
            return kept
    if call.encodes:
        return None
    raise UnsupportedModel(
        model=type(module).__name__,
        reason="it attends over keys that it has not just put into its cache",
    )


def _seen(
    module: nn.Module, mask: MaskStandIn | Tensor | None, whole: bool
) -> MaskStandIn:
    """Return the keys that each query sees.

    Raises:
        UnsupportedModel: the mask is missing, or made by the model's own code, or
            contradicts `whole`, which tells whether queries see all keys.
    """
    if mask is None and whole and not getattr(module, "is_causal", False):
        return MaskStandIn(None, whole=True)
    if not isinstance(mask, MaskStandIn):
        what = "no mask" if mask is None else "a mask of its own"
    elif mask.whole != whole:
        what = (
            "a mask, and attends to an encoder's input or result"
            if whole
            else "no causal mask over its own cache"
        )
    else:
        return mask
    raise UnsupportedModel(model=type(module).__name__, reason=f"it has {what}")


def _seen_among(
    module: nn.Module, mask: MaskStandIn | Tensor | None, others: dict[str, object]
) -> MaskStandIn:
    """Return the tokens of a call that each query sees.

    Raises:
        UnsupportedModel: the mask is made by the model's own code or has chunks, or a
            setting is unknown to kvc.
    """
    asked = others.pop("is_causal", None)
    _check_others(module, others, whole=True)
    if mask is None:
        causal = getattr(module, "is_causal", False) if asked is None else asked
        return MaskStandIn(None, whole=not causal)
    if isinstance(mask, MaskStandIn) and mask.chunk is None:
        return mask
    what = (
        "chunks of the text" if isinstance(mask, MaskStandIn) else "a mask of its own"
    )
    raise UnsupportedModel(model=type(module).__name__, reason=f"it has {what}")


def _check_others(module: nn.Module, others: dict[str, object], whole: bool) -> None:
    """Check that no other argument changes the visible keys or their weights.

    Raises:
        UnsupportedModel: an argument may change the visible keys or their weights.
    """
    for name, found in others.items():
        known = name in ("position_bias", "head_mask") and found is not None
        if known or (isinstance(found, Tensor) and name not in _SAYING_NOTHING):
            raise UnsupportedModel(
                model=type(module).__name__,
                reason=f"its attention is given {name}, which kvc's does not know",
            )
    if not whole and others.get("is_causal") is False:
        raise UnsupportedModel(
            model=type(module).__name__, reason="its attention is not causal"
        )
