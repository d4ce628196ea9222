# ruff: noqa: E501  a table reads best with one line a model
"""Tiny random models of the architectures of transformers, with effective weights.

transformers initializes weights so small that attention is almost uniform, and the
residual stream is almost equal to the embedding: a wrong cache hardly shows in logits.
`build` draws weights such that each layer adds to the stream about as much as the
stream has, and heads attend to few positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 97
WINDOW = 8


@dataclass(frozen=True, slots=True)
class Tiny:
    model_type: str  # transformers' name of the architecture
    settings: Mapping[str, object]  # of its configuration
    attention: str = "eager"  # the implementation that a bundle is held against


# The names that most configurations know.
BASE: dict[str, object] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_FALCON = {
    name: value for name, value in BASE.items()
    if name not in ("head_dim", "intermediate_size", "num_key_value_heads")
}  # fmt: skip
_GPT2: dict[str, object] = {
    "vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_MPT = {"vocab_size": VOCAB, "d_model": 64, "n_layers": 2, "n_heads": 4}
_MPT["max_seq_len"] = 128
_MIXED: dict[str, object] = {
    "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
_EXPERTS: dict[str, object] = {
    "num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}  # fmt: skip
_DEEPSEEK: dict[str, object] = {
    "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 48, "first_k_dense_replace": 1, "q_lora_rank": 24,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "n_shared_experts": 1, "num_key_value_heads": 4, "head_dim": 8,
}  # fmt: skip
# Encoders that can be decoders. Padding is token 1 here, and so the first position 2.
_ROBERTA = BASE | {
    "is_decoder": True, "pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 130,
}  # fmt: skip


def of(**settings: object) -> dict[str, object]:
    return settings


def _named(table: Mapping[str, Mapping[str, object] | Tiny]) -> dict[str, Tiny]:
    """Return the models of a table by name.

    An entry that has only settings gets the model type before the comma in its name,
    and the settings of `BASE`.
    """
    return {
        name: one if isinstance(one, Tiny) else Tiny(name.split(",")[0], BASE | one)
        for name, one in table.items()
    }


def _gemma3n(sparsity: list[float]) -> dict[str, object]:
    return of(
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=16,
        laurel_rank=8,
        activation_sparsity_pattern=sparsity,
    )


def _rope(kind: str, factor: float = 4.0, **settings: object) -> dict[str, object]:
    told = {"rope_type": kind, "rope_theta": 1e4, "factor": factor}
    return {"rope_parameters": told | settings}


_LONG = {
    "short_factor": [1.0 + i / 4 for i in range(8)],
    "long_factor": [4.0 + i for i in range(8)],
}

# As in Phi-4-mini: three quarters of a head turn, and nothing says a factor.
_PHI4: dict[str, object] = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0 + i / 4 for i in range(6)],
        "long_factor": [4.0 + i for i in range(6)],
    },
    "partial_rotary_factor": 0.75,
}


def _phimoe(original: int) -> dict[str, object]:
    """Return settings of Phi-3.5-MoE, which scales cosines and sines in long texts.

    `original` is the length from which on a text is long.
    """
    scales = {"short_mscale": 1.1, "long_mscale": 1.2}
    rope = _rope(
        "longrope", original_max_position_embeddings=original, **scales, **_LONG
    )
    return _EXPERTS | rope


# What every release must run, each with the ways in which its checkpoints differ.
NAMED = _named(
    {
        "llama": of(
            **_rope(
                "llama3",
                8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            )
        ),
        "qwen2": of(),
        "qwen3": of(),
        "mistral": of(sliding_window=WINDOW),
        "gemma": of(tie_word_embeddings=True),
        "gemma2": of(
            sliding_window=WINDOW,
            query_pre_attn_scalar=16,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=20.0,
        ),
        "gemma3_text": of(query_pre_attn_scalar=16, **_MIXED),
        "phi": of(partial_rotary_factor=0.5),
        "phi3": of(
            original_max_position_embeddings=64,
            **_rope("longrope", original_max_position_embeddings=64, **_LONG),
        ),
        "olmo": of(clip_qkv=4.0),
        "olmo2": of(),
        "smollm3": of(no_rope_layers=[1, 0]),
        "gpt2": Tiny("gpt2", _GPT2),
        "gpt_neox": of(rotary_pct=0.5),
        "gptj": Tiny("gptj", _GPT2 | {"rotary_dim": 8}),
        "falcon": Tiny(
            "falcon",
            _FALCON
            | {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
        ),
        "bloom": Tiny(
            "bloom", {"vocab_size": VOCAB, "hidden_size": 96, "n_layer": 2, "n_head": 6}
        ),
        "starcoder2": of(sliding_window=WINDOW),
        "mixtral": of(**_EXPERTS),
        "qwen3_moe": of(**_EXPERTS, decoder_sparse_step=1),
        "gpt_oss": of(**_EXPERTS, **_MIXED),
    }
)

# Other checkpoints of those.
VARIANTS = _named(
    {
        "llama, linear rope": of(**_rope("linear")),
        "llama, dynamic rope": of(**_rope("dynamic")),
        "llama, yarn": of(**_rope("yarn", original_max_position_embeddings=32)),
        "qwen2, sliding": of(
            use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
        ),
        "mistral, full": of(sliding_window=None),
        "phi3, longrope, long texts": of(
            original_max_position_embeddings=32,
            **_rope("longrope", original_max_position_embeddings=32, **_LONG),
        ),
        "phi3, longrope, part of each head": of(
            **_PHI4 | {"original_max_position_embeddings": 64}
        ),
        "phi3, longrope, part of each head, long texts": of(
            **_PHI4 | {"original_max_position_embeddings": 32}
        ),
        "phimoe, longrope": _phimoe(64),
        "phimoe, longrope, long texts": _phimoe(32),
        "phi3, sliding": of(sliding_window=WINDOW),
        "falcon, one key head": Tiny(
            "falcon",
            _FALCON
            | {"alibi": False, "new_decoder_architecture": False, "multi_query": True},
        ),
        "falcon, ALiBi": Tiny(
            "falcon",
            _FALCON
            | {"alibi": True, "new_decoder_architecture": False, "multi_query": False},
            attention="sdpa",  # the eager one adds slopes twice (transformers 5.23)
        ),
        "bloom, 4 heads": Tiny(
            "bloom", {"vocab_size": VOCAB, "hidden_size": 64, "n_layer": 2, "n_head": 4}
        ),
    }
)

# What runs without being named.
OTHERS = _named(
    {
        "apertus": of(),
        "arcee": of(),
        "biogpt": of(),
        "bitnet": of(),
        "codegen": Tiny("codegen", _GPT2 | {"rotary_dim": 8, "n_ctx": 128}),
        "camembert": Tiny("camembert", _ROBERTA),
        "cohere": of(logit_scale=1.0),
        "cohere2": of(logit_scale=1.0, **_MIXED),
        "ctrl": Tiny("ctrl", _GPT2 | {"dff": 96}),
        "cwm": of(**_MIXED),
        "data2vec-text": Tiny("data2vec-text", _ROBERTA),
        "dbrx": Tiny(
            "dbrx",
            _MPT
            | {
                "ffn_config": {
                    "hidden_size": 64,
                    "ffn_hidden_size": 48,
                    "moe_num_experts": 6,
                    "moe_top_k": 2,
                },
                "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0, "rope_theta": 1e4},
            },
        ),
        "diffllama": of(lambda_std_dev=0.5),
        "doge": of(),
        "ernie4_5": of(),
        "exaone4": of(**_MIXED),
        "flex_olmo": of(**_EXPERTS),
        "afmoe": of(
            **_EXPERTS,
            num_dense_layers=1,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=WINDOW,
        ),
        "gemma3n_text": _gemma3n([0.0] * 4),
        "gemma4_text, shared caches": of(
            num_hidden_layers=4,
            num_kv_shared_layers=2,
            layer_types=["sliding_attention", "full_attention"] * 2,
            sliding_window=WINDOW,
            global_head_dim=32,
            hidden_size_per_layer_input=16,
            vocab_size_per_layer_input=VOCAB,
            use_double_wide_mlp=True,
            final_logit_softcapping=20.0,
        ),
        "gemma3n_text, sparse": _gemma3n([0.95, 0.95, 0.0, 0.0]),
        "glm": of(partial_rotary_factor=0.5),
        "glm4": of(partial_rotary_factor=0.5),
        "glm4_moe": of(
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
            first_k_dense_replace=1,
        ),
        "gpt_bigcode": Tiny("gpt_bigcode", _GPT2),
        "gpt_neo": Tiny(
            "gpt_neo",
            {
                "vocab_size": VOCAB,
                "hidden_size": 64,
                "num_layers": 2,
                "num_heads": 4,
                "max_position_embeddings": 128,
                "window_size": WINDOW,
                "attention_types": [[["global", "local"], 1]],
            },
        ),
        "gpt_neox_japanese": of(),
        "granite": of(
            attention_multiplier=0.2,
            residual_multiplier=0.5,
            embedding_multiplier=2.0,
            logits_scaling=2.0,
        ),
        "granitemoe": of(attention_multiplier=0.2, **_EXPERTS),
        "helium": of(),
        "hunyuan_v1_dense": of(),
        "jetmoe": of(kv_channels=16, **_EXPERTS),
        "llama4_text": of(
            num_local_experts=4,
            attention_chunk_size=6,
            no_rope_layers=[1, 0],
            floor_scale=8,
        ),
        "ministral": of(**_MIXED),
        "mpt": Tiny("mpt", _MPT),
        "nanochat": of(),
        "nemotron": of(),
        "olmo3": of(**_MIXED),
        "olmoe": of(**_EXPERTS),
        "opt": Tiny("opt", BASE | {"ffn_dim": 96, "word_embed_proj_dim": 64}),
        "persimmon": of(),
        "phimoe": of(**_EXPERTS),
        "qwen2_moe": of(**_EXPERTS, shared_expert_intermediate_size=48),
        "roberta": Tiny("roberta", _ROBERTA),
        "roberta-prelayernorm": Tiny("roberta-prelayernorm", _ROBERTA),
        "seed_oss": of(),
        "stablelm": of(partial_rotary_factor=0.5),
        "vaultgemma": of(sliding_window=WINDOW, query_pre_attn_scalar=16),
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
        "xlm-roberta": Tiny("xlm-roberta", _ROBERTA),
        "xlm-roberta-xl": Tiny("xlm-roberta-xl", _ROBERTA),
    }
)

# Layers that are recurrent or convolve, with attention between them or without.
_SMALL = {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2}
_MAMBA = _SMALL | {"state_size": 8}
_MAMBA2: dict[str, object] = {
    "mamba_n_heads": 4, "mamba_d_state": 8, "mamba_d_head": 32, "mamba_n_groups": 2,
}  # fmt: skip
_DELTA: dict[str, object] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}  # fmt: skip
_LINEAR_FIRST = {"layer_types": ["linear_attention", "full_attention"]}
RECURRENT = _named(
    {
        "bamba": of(attn_layer_indices=[1], **_MAMBA2),
        "falcon_h1": of(
            mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8
        ),
        "falcon_mamba": Tiny("falcon_mamba", _MAMBA),
        "granitemoehybrid": of(
            layer_types=["mamba", "attention"],
            shared_intermediate_size=48,
            **_MAMBA2,
            **_EXPERTS,
        ),
        "jamba": of(
            attn_layer_period=2,
            attn_layer_offset=1,
            expert_layer_period=2,
            mamba_d_state=8,
            use_mamba_kernels=False,
            **_EXPERTS,
        ),
        "kimi_linear": of(
            **_DEEPSEEK | {"q_lora_rank": None},
            **_LINEAR_FIRST,
            linear_head_dim=8,
            linear_num_heads=4,
            num_experts=6,
        ),
        "lfm2": of(layer_types=["conv", "full_attention"]),
        "lfm2_moe": of(
            layer_types=["conv", "full_attention"], num_dense_layers=1, **_EXPERTS
        ),
        "mamba": Tiny("mamba", _MAMBA),
        "mamba2": Tiny(
            "mamba2", _MAMBA | {"num_heads": 8, "head_dim": 16, "n_groups": 2}
        ),
        "minimax": of(**_LINEAR_FIRST, **_EXPERTS),
        "nemotron_h": of(
            layers_block_type=["mamba", "attention"],
            mamba_num_heads=4,
            mamba_head_dim=16,
            ssm_state_size=8,
            n_groups=2,
        ),
        "olmo_hybrid": of(**_DELTA, **_LINEAR_FIRST),
        "qwen3_5_text": of(**_DELTA, **_LINEAR_FIRST),
        "qwen3_next": of(**_EXPERTS, **_LINEAR_FIRST),
        "recurrent_gemma": of(
            block_types=["recurrent", "attention"],
            lru_width=64,
            attention_window_size=WINDOW,
        ),
        "rwkv": Tiny("rwkv", _SMALL | {"num_hidden_layers": 3, "rescale_every": 2}),
        "zamba": of(
            layers_block_type=["hybrid", "hybrid"],
            n_mamba_heads=2,
            mamba_d_state=8,
            mamba_dt_rank=4,
            attention_head_dim=32,
            attention_hidden_size=128,
        ),
        "zamba2": of(
            layers_block_type=["mamba", "hybrid"],
            n_mamba_heads=8,
            mamba_d_state=8,
            mamba_ngroups=2,
            num_mem_blocks=1,
        ),
    }
)

# Keys and values of all heads are made of one latent.
LATENT = _named(
    {
        "deepseek_v2": of(**_DEEPSEEK),
        "deepseek_v2, lite": of(
            **_DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy"}
        ),
        "deepseek_v3": of(**_DEEPSEEK),
        "deepseek_v3, yarn": of(
            **_DEEPSEEK,
            **_rope("yarn", original_max_position_embeddings=32, mscale_all_dim=1.0),
        ),
        "glm4_moe_lite": of(**_DEEPSEEK),
        "longcat_flash": of(
            **_DEEPSEEK,
            num_layers=1,
            ffn_hidden_size=96,
            expert_ffn_hidden_size=48,
            moe_topk=2,
            zero_expert_num=2,
        ),
        "minicpm3": of(**_DEEPSEEK),
        "youtu": of(**_DEEPSEEK),
        "axk1": of(**_DEEPSEEK),
    }
)

# What is refused: its cache is one of its own, or its code asks for values.
REFUSED = _named(
    {
        "deepseek_v32": of(**_DEEPSEEK),
        "doge, experts": of(is_moe=True, **_EXPERTS | {"num_experts": 16}),
        "doge, long texts": of(keep_window_size=32),
        "openai-gpt": Tiny("openai-gpt", _GPT2),
        "xlnet": Tiny(
            "xlnet",
            {
                "vocab_size": VOCAB,
                "d_model": 64,
                "n_layer": 2,
                "n_head": 4,
                "d_inner": 96,
            },
        ),
        "xmod": Tiny(
            "xmod", _ROBERTA | {"languages": ["en_XX"], "default_language": "en_XX"}
        ),
    }
)

RUNNING = NAMED | VARIANTS | OTHERS | RECURRENT | LATENT
MODELS = RUNNING | REFUSED


# Settings whose presence says that layers differ, so that one is not enough.
_DIFFERING = {"layer_types", "no_rope_layers", "attn_logit_softcapping"}
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def build(name: str, shallow: bool = False, seed: int = 0) -> PreTrainedModel:
    """Return a model in evaluation mode, float32, with weights from `rescale`.

    A `shallow` model has a single layer, if all layers of the architecture are alike.
    """
    tiny = MODELS[name]
    settings = dict(tiny.settings)
    if shallow and not _DIFFERING & settings.keys():
        settings |= {count: 1 for count in _COUNTS if count in settings}
    config = AutoConfig.for_model(tiny.model_type, **settings)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=tiny.attention
    )
    rescale(model, seed)
    return model.eval()


def rescale(model: nn.Module, seed: int) -> None:
    """Draw all weights anew, so that every part of the model affects results."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                around = 1.0 if "norm" in name.lower() or "ln_" in name else 0.0
                parameter.copy_(around + 0.3 * noise)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
