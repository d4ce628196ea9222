"""Tiny configurations of every type of model that transformers has.

In: the name of a type. Out: its default configuration, with small numbers in place of
large ones, chosen by the names of settings: widths, layers, heads, experts,
vocabularies. Settings that are lists of layers keep one of each kind of layer.
"""

from collections.abc import Mapping
from typing import Any, Final

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LAYERS: Final = 2
VOCAB: Final = 97
_KEPT: Final = ("is_decoder", "add_cross_attention")  # of a part, as the whole says
_COUNTS: Final = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers",
    "decoder_layers", "num_encoder_layers", "num_decoder_layers", "depth", "layers",
    "num_block", "num_blocks", "num_hidden_layers_per_stack",
)  # fmt: skip
_SMALL: Final[Mapping[str, int]] = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "embed_dim": 64, "dim": 64,
    "emb_dim": 64, "embedding_size": 64, "word_embed_proj_dim": 64,
    "out_hidden_size": 64,
    "intermediate_size": 96, "ffn_dim": 96, "d_ff": 96, "dff": 96, "n_inner": 96,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "ffn_hidden_size": 96, "d_inner": 96,
    "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48,
    "expert_ffn_hidden_size": 48, "shared_intermediate_size": 48, "mlp_dim": 96,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "attention_heads": 4,
    "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16, "d_kv": 16,
    "kv_channels": 16, "global_head_dim": 16, "v_head_dim": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 24, "rotary_dim": 8,
    "vocab_size": VOCAB, "max_position_embeddings": 128, "n_positions": 128,
    "max_seq_len": 128, "seq_length": 128, "n_ctx": 128, "max_target_positions": 128,
    "max_source_positions": 128,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2, "moe_top_k": 2,
    "n_group": 1, "topk_group": 1,
    "image_size": 32, "patch_size": 8, "projection_dim": 64, "num_channels": 3,
    "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 16,
    "sliding_window": 8, "attention_window_size": 8, "lru_width": 64, "state_size": 8,
    "mamba_d_state": 8, "rank": 8, "laurel_rank": 8,
}  # fmt: skip


def shrunken(name: str, **others: int) -> PreTrainedConfig:
    """Return a tiny configuration of a type; `others` overrides its numbers."""
    kind = CONFIG_MAPPING[name]
    changed: dict[str, Any] = _all_changes(kind(), others)
    return kind(**changed)


def _all_changes(
    config: PreTrainedConfig, others: Mapping[str, int]
) -> dict[str, object]:
    """Return the changed settings of a configuration and its parts."""
    changed = _changes(vars(config))
    changed |= {key: number for key, number in others.items() if key in changed}
    for key, part in vars(config).items():
        if isinstance(part, PreTrainedConfig):
            kept = {name: getattr(part, name, None) for name in _KEPT}
            smaller = {**_all_changes(part, others), "model_type": part.model_type}
            changed[key] = {name: one for name, one in kept.items() if one} | smaller
    return changed


def _changes(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the changed settings of a configuration without its parts."""
    changed: dict[str, object] = {}
    for key, value in settings.items():
        if key in _SMALL and type(value) is int:
            changed[key] = min(value, _SMALL[key])
        if key.endswith(("_token_id", "_token_index")):
            changed[key] = _token(key, value)
    rope = settings.get("rope_parameters")
    if isinstance(rope, dict) and "mrope_section" in rope:
        turned = int(
            _SMALL["head_dim"] * float(str(rope.get("partial_rotary_factor", 1)))
        )
        part = turned // 2 // 3
        changed["rope_parameters"] = {
            **rope,
            "mrope_section": [turned // 2 - 2 * part, part, part],
        }
    changed |= _layers(settings)
    return changed


def _token(key: str, value: object) -> object:
    """Return a token of the small vocabulary, a different token for each name."""
    if type(value) is not int or 0 <= value < 3:
        return value
    return 61 + sum(map(ord, key)) % 35


def _layers(settings: Mapping[str, object]) -> dict[str, object]:
    """Return fewer layers, one of each kind if lists give the kind of each layer."""
    counts = [key for key in _COUNTS if type(settings.get(key)) is int]
    if not counts:
        return {}
    many = settings[counts[0]]
    assert isinstance(many, int)
    lists = {
        key: value
        for key, value in settings.items()
        if isinstance(value, list) and len(value) == many and many > LAYERS
    }
    kinds: dict[object, int] = {}
    for place in range(many):
        kinds.setdefault(repr([value[place] for value in lists.values()]), place)
    places = sorted(kinds.values())[:6]
    while len(places) < min(LAYERS, many):
        places.append(many - 1)
    changed: dict[str, object] = {
        key: [value[place] for place in places] for key, value in lists.items()
    }
    for key in counts:
        changed[key] = min(len(places), int(str(settings[key])))
    return changed
