"""kvc's demo model as a model folder of transformers: a Llama whose tokens are bytes.

Its weights are the result of training in float32, and were never quantized.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from kvc.compiler.checkpoints import Checkpoint
from kvc.compiler.models.decoder import Decoder
from kvc.compiler.models.demo import CONFIG, SEPARATOR, WEIGHTS

_NAMES = {
    "embed.weight": "embed_tokens.weight",
    "attn.q.": "self_attn.q_proj.",
    "attn.k.": "self_attn.k_proj.",
    "attn.v.": "self_attn.v_proj.",
    "attn.o.": "self_attn.o_proj.",
    "attn_norm.": "input_layernorm.",
    "ffn_norm.": "post_attention_layernorm.",
    "ffn.gate.": "mlp.gate_proj.",
    "ffn.up.": "mlp.up_proj.",
    "ffn.down.": "mlp.down_proj.",
}


def save_demo(folder: Path) -> None:
    """Write the model in float32, with its tokenizer, into a folder."""
    config = LlamaConfig(
        vocab_size=CONFIG.vocab,
        hidden_size=CONFIG.dim,
        intermediate_size=CONFIG.ffn,
        num_hidden_layers=CONFIG.layers,
        num_attention_heads=CONFIG.heads,
        num_key_value_heads=CONFIG.kv_heads,
        max_position_embeddings=CONFIG.capacity,
        rms_norm_eps=CONFIG.eps,
        rope_parameters={"rope_type": "default", "rope_theta": CONFIG.rope_base},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SEPARATOR,
    )
    decoder = Decoder(CONFIG)
    with Checkpoint(WEIGHTS) as weights:
        weights.load_into(decoder)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    named = {_theirs(name): value for name, value in decoder.named_parameters()}
    model.model.load_state_dict(named, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    _byte_tokenizer().save(str(folder / "tokenizer.json"))


def _theirs(name: str) -> str:
    """Return the name that transformers has for a weight of the demo model."""
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose tokens are the bytes of UTF-8."""
    vocabulary = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
