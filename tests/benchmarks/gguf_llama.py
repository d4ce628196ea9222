"""Begin a gguf of a Llama without a vocabulary: its sizes, before any tensor.

It needs `pip install gguf==0.19.0`, and nothing of kvc.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a Llama, by the names that a gguf has for them."""

    layers: int
    context: int
    embedding: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int
    vocab: int
    eps: float
    rope_base: float


def llama_writer(path: str | Path, sizes: Sizes, kind: str) -> gguf.GGUFWriter:
    """Return what tensors of a kind of `LlamaFileType` are added to."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(sizes.layers)
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.embedding)
    writer.add_feed_forward_length(sizes.feed_forward)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_layer_norm_rms_eps(sizes.eps)
    writer.add_rope_freq_base(sizes.rope_base)
    writer.add_rope_dimension_count(sizes.head)
    writer.add_vocab_size(sizes.vocab)
    writer.add_file_type(gguf.LlamaFileType[kind])
    writer.add_tokenizer_model("no_vocab")
    return writer


def write_out(writer: gguf.GGUFWriter) -> None:
    """Write a file whose tensors have all been added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
