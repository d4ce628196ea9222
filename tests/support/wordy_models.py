"""A tiny language model with a tokenizer of texts, whose sessions have several rows."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hf_folders import tiny_llama
from small_tokenizers import byte_level
from transformers import LlamaForCausalLM

from kvc.compiler import CacheConfig
from kvc.compiler.hugging_face import export_hf

BEGIN, END = 0, 1  # the tokenizer's special tokens
ROWS, CAPACITY = 3, 96
VOCABULARY = byte_level().get_vocab_size()


def wordy_llama(seed: int = 0) -> LlamaForCausalLM:
    """Return a seeded model of the tokens of `byte_level`."""
    return tiny_llama(
        seed,
        vocab_size=VOCABULARY,
        max_position_embeddings=CAPACITY,
        bos_token_id=BEGIN,
        eos_token_id=END,
    )


def write_wordy(path: Path, seed: int = 0, kind: str = "float32") -> Path:
    """Write a bundle of the model: one to three rows, all logits, its tokenizer.

    Args:
        path: the file to write.
        seed: the seed of the weights.
        kind: the dtype of the cache.
    """
    path.write_bytes(_bundle(seed, kind))
    return path


def write_folder(folder: Path, seed: int = 0) -> Path:
    """Write a folder of transformers with the model and its tokenizer."""
    wordy_llama(seed).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(byte_level().to_str())
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    return folder


@cache  # several files of tests need the same
def _bundle(seed: int, kind: str) -> bytes:
    with TemporaryDirectory() as made:
        folder = write_folder(Path(made) / "model", seed)
        caches = CacheConfig(batch=ROWS, dtype=kind)
        bundle = export_hf(folder, recipe="cpu_fp32", cache=caches, all_logits=True)
        bundle.save(folder / "model.kvc")
        return (folder / "model.kvc").read_bytes()
