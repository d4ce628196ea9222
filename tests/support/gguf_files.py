"""GGUF files of a tiny Llama, written by the gguf package's own writer."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import gguf
import numpy as np
import torch
from hf_folders import SIZES as PLAIN
from hf_folders import tiny_llama
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

M = TypeVar("M", bound=PreTrainedModel)

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm",
    "lm_head": "output", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def gguf_name(name: str) -> str:
    """Return the name in a GGUF file of a parameter of Llama."""
    stem, _, end = name.rpartition(".")
    stem = stem.replace("model.layers.", "blk.")
    for own, other in NAMES.items():
        stem = stem.removesuffix(own) + other if stem.endswith(own) else stem
    return f"{stem}.{end}"


def random_blocks(shape: tuple[int, ...], kind: str, seed: int) -> np.ndarray:
    """Return rows of a type that the package reads and does not write: uint8.

    The scales of blocks, float16, are small numbers.
    """
    number = gguf.GGMLQuantizationType[kind]
    elements, nbytes = gguf.GGML_QUANT_SIZES[number]
    random = np.random.default_rng(seed)
    count = int(np.prod(shape)) // elements
    blocks = random.integers(0, 256, (count, nbytes), dtype=np.uint8)
    # Where the float16 lie: after the integers of Q6_K, before those of the others.
    places = {"Q6_K": (208,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q3_K": (108,)}
    for place in places[kind]:
        half = (random.uniform(1e-4, 1e-3, count)).astype(np.float16)
        blocks[:, place : place + 2] = half[:, None].view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return rows of queries or keys in llama.cpp's order: halves of heads as pairs."""
    rows = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(weight.shape)


def save_gguf(
    path: Path,
    kind: str,
    rope: Mapping[str, object] | None = None,
    factors: np.ndarray | None = None,
    metadata: Mapping[str, object] | None = None,
    parts: int = 1,
) -> LlamaForCausalLM:
    """Write a Llama with matrices of one type; return the model that it stands for.

    Args:
        path: path of the file.
        kind: type of the matrices.
        rope: the model's settings of rotary positions, which the file has as factors.
        factors: other factors of frequencies.
        metadata: the type of scaling, and its factor.
        parts: the number of files that the model is split into.
    """
    model = tiny_llama(**SIZES, **({"rope_parameters": dict(rope)} if rope else {}))
    config = model.config
    if rope:
        rotary = model.model.rotary_emb.inv_freq.numpy()
        plain = 10000.0 ** -(np.arange(len(rotary)) / len(rotary))
        factors = (plain / rotary).astype(np.float32)
    split = -(-len(model.state_dict()) // parts) if parts > 1 else 0
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer)
    if metadata is not None:
        writer.add_rope_scaling_type(
            gguf.RopeScalingType(metadata["rope.scaling.type"])
        )
        writer.add_rope_scaling_factor(float(str(metadata["factor"])))
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    number = gguf.GGMLQuantizationType[kind]
    for seed, (name, weight) in enumerate(model.state_dict().items()):
        found = gguf_name(name)
        if weight.dim() < 2:
            writer.add_tensor(found, weight.numpy())
            continue
        heads = {"attn_q": 4, "attn_k": 2}.get(found.split(".")[-2], 0)
        values = permuted(weight.numpy(), heads) if heads else weight.numpy()
        try:
            packed = gguf.quants.quantize(values, number)
        except NotImplementedError:
            packed = random_blocks(values.shape, kind, seed)
        widened = gguf.quants.dequantize(packed, number)
        if heads:  # back into the model's order
            rows = widened.reshape(heads, -1, 2, weight.shape[1])
            widened = rows.swapaxes(1, 2).reshape(weight.shape)
        with torch.no_grad():
            weight.copy_(torch.from_numpy(widened.astype(np.float32)))
        writer.add_tensor(found, packed, raw_dtype=number)
    return _written(writer, model)


def _written(writer: gguf.GGUFWriter, model: M) -> M:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def save_other(path: Path, kind: str) -> PreTrainedModel:
    """Write a Gemma 2, or a Qwen 2 or 3 with experts, in float32; return the model."""
    sizes = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8,
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "gemma2":
        model: PreTrainedModel = Gemma2ForCausalLM(Gemma2Config(**sizes)).eval()
    else:
        experts = {"num_experts": 4, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 16, "decoder_sparse_step": 1}  # fmt: skip
        if kind == "qwen2moe":
            shared = {"shared_expert_intermediate_size": 24}
            others = Qwen2MoeConfig(**sizes, **experts, **shared)
            model = Qwen2MoeForCausalLM(others).eval()
        else:
            config = Qwen3MoeConfig(**sizes, **experts, tie_word_embeddings=False)
            model = Qwen3MoeForCausalLM(config).eval()
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(8)
    writer.add_value_length(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(64)
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(16)
    writer.add_expert_shared_feed_forward_length(24)
    arch = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[kind]
    names = gguf.get_tensor_name_map(arch, 1)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        if name.endswith("experts.gate_up_proj"):  # [experts, both, hidden]
            gate, up = np.split(values, 2, axis=1)
            writer.add_tensor("blk.0.ffn_gate_exps.weight", np.ascontiguousarray(gate))
            writer.add_tensor("blk.0.ffn_up_exps.weight", np.ascontiguousarray(up))
            continue
        if name.endswith("experts.down_proj"):
            writer.add_tensor("blk.0.ffn_down_exps.weight", values)
            continue
        if name == "lm_head.weight" and kind == "gemma2":  # tied
            continue
        stem, _, end = name.rpartition(".")
        found = names.get_name(stem)
        if name.endswith("shared_expert_gate.weight"):  # [1, hidden]
            values = values[0]
        offset = 1 if kind == "gemma2" and "norm" in name else 0
        writer.add_tensor(f"{found}.{end}", values + offset)
    return _written(writer, model)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Add a vocabulary of bytes, of as many tokens as the model has."""
    count = int(str(PLAIN["vocab_size"]))
    letters = [chr(65 + i) for i in range(26)] + [chr(97 + i) for i in range(26)]
    tokens = ["<unk>", "<s>", "</s>", *letters, *"01234567", "ab"]
    tokens += [f"<{i}>" for i in range(count - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    kinds = [3 if token.startswith("<") else 1 for token in tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
