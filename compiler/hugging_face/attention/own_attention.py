"""Adapt architectures whose attention does not use transformers' interface.

A few older architectures compute attention in their own modules. In: a model of such an
architecture. Out: while `adapted` is active, functions that call kvc's `attend` replace
methods of the model's modules. The classes of these modules stay unchanged. The masks
of these models are causal, or are windows that are known here. Biases that grow with
the distance of positions (ALiBi) are passed as slopes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.models.diffllama import modeling_diffllama as diffllama
from transformers.models.doge import modeling_doge as doge
from transformers.models.falcon import modeling_falcon as falcon
from transformers.models.jetmoe import modeling_jetmoe as jetmoe

from kvc.compiler.hugging_face.attention.experts import jetmoe_routed
from kvc.compiler.hugging_face.attention.own_cross_attention import (
    trocr,
    trocr_positions,
    trocr_sines,
)
from kvc.compiler.hugging_face.attention.own_encoder_attention import (
    deberta_distances,
    deberta_v2,
    mpnet,
    mpnet_bias,
)
from kvc.compiler.hugging_face.attention.replaced import attend_causally
from kvc.compiler.hugging_face.reading.model_lines import name_of
from kvc.schema.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers.models.bloom.modeling_bloom import BloomAttention
    from transformers.models.doge.modeling_doge import DogeAttention
    from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention
    from transformers.models.jetmoe.modeling_jetmoe import JetMoeAttention
    from transformers.models.mpt.modeling_mpt import MptAttention
    from transformers.models.xglm.modeling_xglm import (
        XGLMAttention,
        XGLMSinusoidalPositionalEmbedding,
    )

_Attended = tuple[Tensor, None]


def has_own_attention(model: PreTrainedModel) -> bool:
    """Tell whether kvc can replace the attention code of a model's own modules."""
    return any(name_of(module) in _ADAPTERS for module in model.modules())


@contextmanager
def adapted(model: PreTrainedModel) -> Iterator[None]:
    """Replace the attention code of a model's own modules by functions of kvc."""
    with ExitStack() as stack:
        for module in model.modules():
            if name_of(module) in _ADAPTERS:
                method, function = _ADAPTERS[name_of(module)]
                setattr(module, method, partial(function, module))
                stack.callback(delattr, module, method)
        yield


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes of ALiBi (Press et al., 2021) for any number of heads."""
    whole = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    return slopes + [2 ** (-8 * (i + 0.5) / whole) for i in range(heads - whole)]


def _merged(attended: Tensor) -> Tensor:
    """Merge [batch, seq, heads, dim] into [batch, seq, heads * dim]."""
    return attended.flatten(2)


def _kept(
    cache: Cache, layer: int | None, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Write keys and values to a layer's caches; return all cached keys and values."""
    assert layer is not None
    return cache.update(key, value, layer)


def _plain(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object
) -> _Attended:
    """Replace a method `_attn` that computes each head's scaled products in float32."""
    out = attend_causally(module, query.to(value.dtype), key, value)
    return out.transpose(1, 2), None


def _gpt_neo(
    module: "GPTNeoSelfAttention", query: Tensor, key: Tensor, value: Tensor, *_: object
) -> _Attended:
    """Replace GPT-Neo's `_attn`, whose scores have no scale.

    Local layers have a window.
    """
    local = module.attention_type == "local"
    window = module.config.window_size if local else None
    out = attend_causally(module, query, key, value, scale=1.0, window=window)
    return out.transpose(1, 2), None


def _bloom(
    module: "BloomAttention",
    hidden_states: Tensor,
    residual: Tensor,
    *_: object,
    layer_past: Cache,
    **__: object,
) -> _Attended:
    """Replace BLOOM's attention, which is ALiBi with BLOOM's own slopes."""
    query, key, value = module._reshape(module.query_key_value(hidden_states))
    key, value = _kept(layer_past, module.layer_idx, key, value)
    slopes = torch.tensor(alibi_slopes(module.num_heads))
    attended = attend_causally(module, query, key, value, slopes=slopes)
    made: Tensor = module.dense(_merged(attended))
    return made + residual, None


def _falcon(
    module: falcon.FalconAttention,
    hidden_states: Tensor,
    *_: object,
    layer_past: Cache,
    alibi: Tensor | None,
    position_embeddings: tuple[Tensor, Tensor],
    **__: object,
) -> _Attended:
    """Replace Falcon's attention, which is rotary or ALiBi.

    The cache stores each key head once, although several query heads share it.
    """
    split = module._split_heads(module.query_key_value(hidden_states))
    query, key, value = (heads.transpose(1, 2) for heads in split)
    if module.new_decoder_architecture:
        assert module.num_kv_heads
        group = module.num_heads // module.num_kv_heads
        key, value = key[:, ::group], value[:, ::group]
    slopes = None
    if alibi is None:
        query, key = falcon.apply_rotary_pos_emb(query, key, *position_embeddings)  # type: ignore[no-untyped-call]
    else:
        # Rounded as in Falcon, which then rounds the products once more.
        rounded = torch.tensor(alibi_slopes(module.num_heads)).bfloat16().float()
        slopes = rounded * module.inv_norm_factor
    key, value = _kept(layer_past, module.layer_idx, key, value)
    attended = attend_causally(module, query, key, value, slopes=slopes)
    return module.dense(_merged(attended)), None


def _mpt(
    module: "MptAttention",
    hidden_states: Tensor,
    *_: object,
    past_key_values: Cache,
    **__: object,
) -> _Attended:
    """Replace MPT's attention, which is ALiBi with slopes by MPT's own formula."""
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(-module.clip_qkv, module.clip_qkv)
    split = mixed.unflatten(2, (3, module.n_heads, module.head_dim))
    query, key, value = split.transpose(1, 3).unbind(2)
    key, value = _kept(past_key_values, module.layer_idx, key, value)
    attended = attend_causally(
        module,
        query,
        key,
        value,
        scale=module.softmax_scale,
        slopes=torch.tensor(_mpt_slopes(module.n_heads)),
    )
    return module.out_proj(_merged(attended)), None


def _mpt_slopes(heads: int) -> list[float]:
    whole = 2 ** math.ceil(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / whole) for i in range(whole)]
    return slopes if whole == heads else (slopes[1::2] + slopes[::2])[:heads]


def _diffllama(
    module: diffllama.DiffLlamaAttention,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    *_: object,
    past_key_values: Cache,
    **__: object,
) -> _Attended:
    """Replace DiffLlama's attention: the difference of two weighted sums of values.

    A head of the cache stands for two heads of the model. It holds the keys for the two
    halves of the queries, and the values, which are the same for both halves.
    """
    query, key, value = (
        project(hidden_states).unflatten(2, (-1, module.head_dim)).transpose(1, 2)
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    query, key = diffllama.apply_rotary_pos_emb(query, key, *position_embeddings)
    key, value = (torch.cat(pair.chunk(2, dim=1), dim=-1) for pair in (key, value))
    key, value = _kept(past_key_values, module.layer_idx, key, value)
    parts = slice(None, module.head_dim), slice(module.head_dim, None)
    added, taken = (
        attend_causally(module, half, key, value, module.scaling, part=part)
        for half, part in zip(query.chunk(2, dim=1), parts, strict=True)
    )
    factor = torch.exp((module.lambda_q1 * module.lambda_k1).sum())
    factor = factor - torch.exp((module.lambda_q2 * module.lambda_k2).sum())
    attended = module.groupnorm(added - (factor + module.lambda_init) * taken)
    return module.o_proj(_merged((1 - module.lambda_init) * attended)), None


def _doge(
    module: "DogeAttention",
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    *_: object,
    past_key_values: Cache,
    **__: object,
) -> _Attended:
    """Replace Doge's attention, in which each value gives a bias for its key.

    The bias is added to all scores of the key. The cache stores the bias as the last
    element of the key. The last element of each query is a factor that cancels the
    scale of the scores.
    """
    projected = (
        project(hidden_states).unflatten(2, (-1, module.head_dim))
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    query, key, value = projected
    more = torch.nn.functional.softplus(module.dt_proj(value.flatten(2)))
    more = torch.exp(module.A * more).transpose(1, 2)[..., None]
    query, key = module.q_norm(query).transpose(1, 2), module.k_norm(key)
    query, key = doge.apply_rotary_pos_emb(
        query, key.transpose(1, 2), *position_embeddings
    )
    one = torch.full_like(query[..., :1], 1 / module.scaling)
    query, key = torch.cat([query, one], dim=-1), torch.cat([key, more], dim=-1)
    key, value = _kept(past_key_values, module.layer_idx, key, value.transpose(1, 2))
    window = module.config.sliding_window
    attended = attend_causally(module, query, key, value, module.scaling, window)
    return module.o_proj(_merged(attended)), None


def check_keys(model: PreTrainedModel, length: int) -> None:
    """Check that a model's attention selects no keys by their cached values.

    Doge selects keys by their values in texts longer than a configured length.

    Raises:
        UnsupportedModel: values select keys in texts of this length.
    """
    for module in model.modules():
        most = getattr(module, "keep_window_size", length)
        if name_of(module) == "doge.DogeAttention" and length > most:
            reason = (
                f"in texts longer than {most} tokens values in the cache choose which "
                "keys count at all (dynamic mask attention), and kvc's attention knows "
                "only windows; compile it for shorter ones, with "
                f"CacheConfig(max_length={most}) or --max-length {most}"
            )
            raise UnsupportedModel(model=type(model).__name__, reason=reason)


def _jetmoe(
    module: "JetMoeAttention",
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    *_: object,
    past_key_values: Cache,
    **__: object,
) -> tuple[Tensor, None, Tensor]:
    """Replace JetMoE's attention, in which each expert computes queries of its own.

    The queries of all selected experts attend to the same keys. Queries to the same key
    head become neighboring heads, so each key is stored once.
    """
    mixture, (batch, seq, _hidden) = module.experts, hidden_states.shape
    routed = jetmoe_routed(mixture.router, hidden_states)
    rows = routed.projected(routed.repeated(), mixture.input_linear.weight)
    heads = (module.top_k, module.num_key_value_heads, module.head_dim)
    query = rows.view(batch, seq, *heads).transpose(2, 3).flatten(2, 3).transpose(1, 2)
    key, value = (
        part.unflatten(2, (-1, module.head_dim)).transpose(1, 2)
        for part in module.kv_proj(hidden_states).chunk(2, dim=-1)
    )
    query, key = jetmoe.apply_rotary_pos_emb(query, key, *position_embeddings)
    key, value = _kept(past_key_values, module.layer_idx, key, value)
    attended = attend_causally(module, query, key, value, scale=module.scaling)
    by_expert = attended.reshape(batch, seq, heads[1], heads[0], -1).transpose(2, 3)
    rows = by_expert.reshape(batch * seq * heads[0], -1)
    out = routed.summed(routed.projected(rows, mixture.output_linear.weight))
    return out.view(hidden_states.shape) + mixture.bias, None, routed.logits


def _xglm(
    module: "XGLMAttention",
    hidden_states: Tensor,
    *_: object,
    past_key_values: Cache,
    **__: object,
) -> _Attended:
    query, key, value = (
        project(hidden_states).unflatten(2, (-1, module.head_dim)).transpose(1, 2)
        for project in (module.q_proj, module.k_proj, module.v_proj)
    )
    key, value = _kept(past_key_values, module.layer_idx, key, value)
    attended = attend_causally(module, query, key, value, scale=module.scaling)
    return module.out_proj(_merged(attended)), None


def _xglm_positions(
    module: "XGLMSinusoidalPositionalEmbedding", position_ids: Tensor, _: object
) -> Tensor:
    """Replace XGLM's position table, which grows when it is too short."""
    table: Tensor = module.weights
    return table[position_ids + module.offset]


_ADAPTERS: Final[Mapping[str, tuple[str, Callable[..., object]]]] = {
    "bloom.BloomAttention": ("forward", _bloom),
    "codegen.CodeGenAttention": ("_attn", _plain),
    "diffllama.DiffLlamaAttention": ("forward", _diffllama),
    "deberta_v2.DebertaV2Encoder": ("get_rel_pos", deberta_distances),
    "deberta_v2.DisentangledSelfAttention": ("forward", deberta_v2),
    "doge.DogeAttention": ("forward", _doge),
    "falcon.FalconAttention": ("forward", _falcon),
    "gpt_neo.GPTNeoSelfAttention": ("_attn", _gpt_neo),
    "gpt_neox_japanese.GPTNeoXJapaneseAttention": ("_attn", _plain),
    "gptj.GPTJAttention": ("_attn", _plain),
    "jetmoe.JetMoeAttention": ("forward", _jetmoe),
    "mpnet.MPNetEncoder": ("compute_position_bias", mpnet_bias),
    "mpnet.MPNetSelfAttention": ("forward", mpnet),
    "mpt.MptAttention": ("forward", _mpt),
    "trocr.TrOCRAttention": ("forward", trocr),
    "trocr.TrOCRLearnedPositionalEmbedding": ("forward", trocr_positions),
    "trocr.TrOCRSinusoidalPositionalEmbedding": ("forward", trocr_sines),
    "xglm.XGLMAttention": ("forward", _xglm),
    "xglm.XGLMSinusoidalPositionalEmbedding": ("forward", _xglm_positions),
}
