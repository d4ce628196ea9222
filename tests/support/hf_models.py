"""Tiny random models of the architectures of transformers, with weights that matter.

The default initialisation makes all weights so small that attention is all but
uniform and the residual stream all but the embedding: wrong caches hardly show in
logits. `build` draws weights such that each layer changes the stream by as much as
it holds, and heads look at few positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 97


@dataclass(frozen=True, slots=True)
class Tiny:
    """A tiny configuration.

    Attributes:
        model_type: transformers' name of the architecture.
        settings: of its configuration.
        window: the sliding window of some of its layers, None where there is none.
    """

    model_type: str
    settings: Mapping[str, object]
    window: int | None = None


# The names that most configurations know.
_BASE = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {
    "num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}  # fmt: skip
_GPT2 = {
    "vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def _llama_like(model_type: str, **settings: object) -> Tiny:
    window = settings.get("sliding_window")
    assert window is None or isinstance(window, int)
    return Tiny(model_type, _BASE | settings, window)


def _without(*names: str) -> dict[str, object]:
    return {name: value for name, value in _BASE.items() if name not in names}


_WINDOW = 8
ARCHITECTURES: dict[str, Tiny] = {
    "llama": _llama_like("llama"),
    "llama, tied": _llama_like("llama", tie_word_embeddings=True),
    "qwen2": _llama_like("qwen2"),
    "qwen2, sliding": _llama_like(
        "qwen2", use_sliding_window=True, sliding_window=_WINDOW, max_window_layers=1
    ),
    "qwen3": _llama_like("qwen3"),
    "mistral": _llama_like("mistral", sliding_window=None),
    "mistral, sliding": _llama_like("mistral", sliding_window=_WINDOW),
    "gemma": _llama_like("gemma"),
    "gemma2": _llama_like(
        "gemma2",
        sliding_window=_WINDOW,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=20.0,
    ),
    "gemma3_text": _llama_like(
        "gemma3_text", sliding_window=_WINDOW, query_pre_attn_scalar=16, **_SLIDING
    ),
    "phi": _llama_like("phi", partial_rotary_factor=0.5),
    "phi3": _llama_like("phi3"),
    "phi3, sliding": _llama_like("phi3", sliding_window=_WINDOW),
    "olmo": _llama_like("olmo", clip_qkv=4.0),
    "olmo2": _llama_like("olmo2"),
    "olmo3": _llama_like("olmo3", sliding_window=_WINDOW, **_SLIDING),
    "smollm3": _llama_like("smollm3", no_rope_layers=[1, 0]),
    "gpt2": Tiny("gpt2", _GPT2),
    "gpt_neox": _llama_like("gpt_neox", rotary_pct=0.5),
    "gptj": Tiny("gptj", _GPT2 | {"rotary_dim": 8}),
    "falcon": _llama_like(
        "falcon", alibi=False, new_decoder_architecture=False, multi_query=True
    ),
    "falcon, grouped": _llama_like(
        "falcon", alibi=False, new_decoder_architecture=True, num_kv_heads=2
    ),
    "falcon, alibi": _llama_like(
        "falcon", alibi=True, multi_query=False, new_decoder_architecture=False
    ),
    "bloom": Tiny(
        "bloom", {"vocab_size": VOCAB, "hidden_size": 64, "n_layer": 2, "n_head": 4}
    ),
    "bloom, 6 heads": Tiny(
        "bloom", {"vocab_size": VOCAB, "hidden_size": 96, "n_layer": 2, "n_head": 6}
    ),
    "starcoder2": _llama_like("starcoder2"),
    "starcoder2, sliding": _llama_like("starcoder2", sliding_window=_WINDOW),
    "mixtral": _llama_like("mixtral", **_EXPERTS),
    "qwen3_moe": _llama_like("qwen3_moe", **_EXPERTS, decoder_sparse_step=1),
    "gpt_oss": _llama_like("gpt_oss", **_EXPERTS, sliding_window=_WINDOW, **_SLIDING),
    "cohere": _llama_like("cohere"),
    "cohere2": _llama_like("cohere2", sliding_window=_WINDOW, **_SLIDING),
    "stablelm": _llama_like("stablelm", partial_rotary_factor=0.5),
    "granite": _llama_like(
        "granite",
        attention_multiplier=0.2,
        residual_multiplier=0.5,
        embedding_multiplier=2.0,
        logits_scaling=2.0,
    ),
    "granitemoe": _llama_like("granitemoe", **_EXPERTS),
    "qwen2_moe": _llama_like(
        "qwen2_moe", **_EXPERTS, shared_expert_intermediate_size=48
    ),
    "opt": Tiny("opt", _BASE | {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "mpt": Tiny(
        "mpt",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": 128,
        },
    ),
    "codegen": Tiny("codegen", _GPT2 | {"rotary_dim": 8, "n_ctx": 128}),
    "exaone4": _llama_like("exaone4", sliding_window=_WINDOW, **_SLIDING),
    "glm": _llama_like("glm", partial_rotary_factor=0.5),
    "glm4": _llama_like("glm4", partial_rotary_factor=0.5),
    "glm4_moe": _llama_like(
        "glm4_moe",
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        first_k_dense_replace=1,
    ),
    "nemotron": _llama_like("nemotron"),
    "persimmon": _llama_like("persimmon"),
    "gpt_neo": Tiny(
        "gpt_neo",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 128,
            "window_size": _WINDOW,
            "attention_types": [[["global", "local"], 1]],
        },
        _WINDOW,
    ),
    "gpt_bigcode": Tiny("gpt_bigcode", _GPT2),
    "biogpt": _llama_like("biogpt"),
    "xglm": Tiny(
        "xglm",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "num_layers": 2,
            "attention_heads": 4,
            "ffn_dim": 96,
            "max_position_embeddings": 128,
        },
    ),
    "ernie4_5": _llama_like("ernie4_5"),
    "olmoe": _llama_like("olmoe", **_EXPERTS),
    "phimoe": _llama_like("phimoe", **_EXPERTS),
    "helium": _llama_like("helium"),
    "arcee": _llama_like("arcee"),
    "apertus": _llama_like("apertus"),
    "seed_oss": _llama_like("seed_oss"),
    "hunyuan_v1_dense": _llama_like("hunyuan_v1_dense"),
    "ministral": _llama_like("ministral", sliding_window=_WINDOW, **_SLIDING),
    "deepseek_v3": _llama_like(
        "deepseek_v3",
        n_routed_experts=6,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=48,
        first_k_dense_replace=1,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        n_shared_experts=1,
        num_key_value_heads=4,
    ),
    "dbrx": Tiny(
        "dbrx",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": 128,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 4.0},
            "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 6, "moe_top_k": 2},
        },
    ),
    "bitnet": _llama_like("bitnet"),
    "nanochat": _llama_like("nanochat"),
    "diffllama": _llama_like("diffllama"),
    "vaultgemma": _llama_like(
        "vaultgemma", sliding_window=_WINDOW, query_pre_attn_scalar=16
    ),
    "ctrl": Tiny(
        "ctrl",
        {
            "vocab_size": VOCAB,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "dff": 96,
        },
    ),
    "lfm2": _llama_like("lfm2", layer_types=["conv", "full_attention"]),
    "mamba": Tiny(
        "mamba",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "state_size": 8,
        },
    ),
    "qwen3_next": _llama_like(
        "qwen3_next", **_EXPERTS, layer_types=["linear_attention", "full_attention"]
    ),
    "llama4_text": _llama_like("llama4_text", num_local_experts=4),
    "gemma3n_text": _llama_like("gemma3n_text"),
    "flex_olmo": _llama_like("flex_olmo", **_EXPERTS),
    "cwm": _llama_like("cwm", sliding_window=_WINDOW, **_SLIDING),
}


def build(name: str, seed: int = 0) -> PreTrainedModel:
    """Return the named model, in evaluation mode, float32, with rescaled weights."""
    tiny = ARCHITECTURES[name]
    config = AutoConfig.for_model(tiny.model_type, **tiny.settings)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rescale(model, seed)
    return model


def rescale(model: nn.Module, seed: int) -> None:
    """Draw all weights anew such that every part of the model matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                around = 1.0 if "norm" in name.lower() or "ln_" in name else 0.0
                parameter.copy_(around + 0.3 * noise)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
