"""Tiny models of transformers, and folders with the files of published models."""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

VOCABULARY = 64
SIZES: dict[str, object] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_llama(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    """Return a seeded Llama with weights as large as those of trained models.

    The weights of an untrained model are so small that errors do not show in results.
    """
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(SIZES | changes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.dim() > 1 else 1)
    return model


def eager(model: PreTrainedModel, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.from_numpy(tokens)).logits.numpy()
    return logits


def random_tokens(count: int, seed: int = 0) -> NDArray[np.int64]:
    """Return random tokens int64 [1, count]."""
    return np.random.default_rng(seed).integers(3, VOCABULARY, (1, count))


def word_tokenizer(words: int = VOCABULARY) -> str:
    vocabulary = {str(number): number for number in range(words)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "0"}
    nothing = "truncation", "padding", "normalizer", "post_processor", "decoder"
    whole = {"version": "1.0", "added_tokens": [], **dict.fromkeys(nothing)}
    return json.dumps(whole | {"pre_tokenizer": {"type": "Whitespace"}, "model": model})


def save_folder(path: Path, model: PreTrainedModel, shard: str = "1GB") -> Path:
    model.save_pretrained(path, max_shard_size=shard)
    (path / "tokenizer.json").write_text(word_tokenizer())
    (path / "tokenizer_config.json").write_text('{"eos_token": "2"}')
    (path / "chat_template.jinja").write_text("{{ messages }}")
    settings = {"temperature": 0.7, "eos_token_id": [2, 3], "transformers_version": "5"}
    (path / "generation_config.json").write_text(json.dumps(settings))
    return path


def change_json(path: Path, **changes: object) -> None:
    """Set members of the JSON object in a file; remove members that are set to None."""
    found = json.loads(path.read_text()) | changes
    kept = {name: value for name, value in found.items() if value is not None}
    path.write_text(json.dumps(kept))
