"""Tiny bundles to serve: a chat with tools, embeddings, speech."""

import json
from pathlib import Path

import torch
from encoder_models import build as build_encoder
from family_templates import QWEN
from hf_folders import tiny_llama
from hf_models import rescale
from peft_adapters import convert, save_adapter
from small_tokenizers import byte_level, word_piece
from tokenizers import Tokenizer
from transformers import (
    LlamaForCausalLM,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from kvc.compiler import AdapterSlots, CacheConfig, export_hf
from kvc.runtime import load

BEGIN, END = 0, 1  # the tokenizer's special tokens
SEED, ROWS, CAPACITY = 1, 4, 1024
RATE = 16_000


def words() -> Tokenizer:
    """Return the tokenizer of `byte_level`, for which marks are plain texts."""
    settings = json.loads(byte_level().to_str())
    settings["added_tokens"] = [
        one for one in settings["added_tokens"] if one["special"]
    ]
    return Tokenizer.from_str(json.dumps(settings))


def chat_model() -> LlamaForCausalLM:
    """Return a seeded model of the tokens of `byte_level` that writes plain letters."""
    known = words()
    model = tiny_llama(
        SEED,
        vocab_size=known.get_vocab_size(),
        max_position_embeddings=CAPACITY,
        bos_token_id=BEGIN,
        eos_token_id=END,
        tie_word_embeddings=False,
    )
    with torch.no_grad():
        for token in range(known.get_vocab_size()):
            text = known.decode([token])
            plain = text.isascii() and text.isprintable() and "<" not in text
            if not plain or not text:
                model.lm_head.weight[token] = 0
    return model


def write_chat_bundle(path: Path, template: str = QWEN, slots: bool = True) -> Path:
    """Write a bundle of a chat of some rows; beside it "poet.kva", an adapter."""
    model, folder = chat_model(), path.parent / path.stem
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(words().to_str())
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    (folder / "chat_template.jinja").write_text(template)
    asked = AdapterSlots(2, rank=4) if slots else None
    cache = CacheConfig(batch=ROWS)
    bundle = export_hf(folder, recipe="cpu_fp32", cache=cache, adapters=asked)
    bundle.save(path)
    if slots:
        save_adapter(model, path.parent / "poet")
        with load(path) as program:
            convert(path.parent / "poet", program, path.parent / "poet.kva")
    return path


def write_embedding_bundle(path: Path) -> Path:
    """Write a bundle that embeds texts."""
    folder, known = path.parent / path.stem, word_piece()
    model = build_encoder("bert", "embed", vocab_size=known.get_vocab_size())
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(known.to_str())
    export_hf(folder, task="embed", recipe="cpu_fp32").save(path)
    return path


def write_speech_bundle(path: Path) -> Path:
    """Write a bundle that hears sounds of a second, whose words are numbers."""
    sizes = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 48))
    }
    config = WhisperConfig(
        vocab_size=160, d_model=32, num_mel_bins=8, max_source_positions=50,
        max_target_positions=64, pad_token_id=80, bos_token_id=80, eos_token_id=80,
        decoder_start_token_id=81, suppress_tokens=None, begin_suppress_tokens=None,
        **sizes,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    rescale(model, seed=0)
    told = {
        "lang_to_id": {"<|en|>": 82, "<|de|>": 83},
        "task_to_id": {"transcribe": 84, "translate": 85},
        "no_timestamps_token_id": 99, "max_initial_timestamp_index": 20,
        "is_multilingual": True, "suppress_tokens": [5, 6, 7],
        "begin_suppress_tokens": [9, 80], "max_length": 60, "eos_token_id": 80,
        "pad_token_id": 80, "decoder_start_token_id": 81,
    }  # fmt: skip
    for name, value in told.items():
        setattr(model.generation_config, name, value)
    folder = path.parent / path.stem
    model.eval().save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    export_hf(folder, recipe="cpu_fp32").save(path)
    return path
