"""llama.cpp's side of `real_models.py`, in an environment of its own.

It needs `pip install llama-cpp-python==0.3.36 gguf==0.19.0`. `float32` writes what the
weights of a gguf stand for, with all that it says beside them, or those of a folder of
transformers that holds a Llama in float32; `quantize` asks llama.cpp's own quantizer,
as it is set by default; `logits` prints a line of JSON with sizes, and then answers
windows of tokens with logits, as `LlamaScorer` asks for them.
"""

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
from gguf.utility import SafetensorsLocal
from gguf_llama import Sizes, llama_writer, write_out
from llama_cpp import llama_cpp as library

KINDS = {"F32": 0, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}  # llama_ftype
ROWS = 64  # that are written at once
FLOAT32 = 0  # ggml_type


def write_float32(path: Path, out: Path) -> None:
    """Write a gguf's weights as float32."""
    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture)
    for field in reader.fields.values():
        own = field.name.startswith("GGUF.") or field.name == "general.architecture"
        if own or field.name == "general.file_type":
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=of)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float32, copy=False))
    write_out(writer)


def write_llama(folder: Path, out: Path) -> None:
    """Write the weights of a Llama, that a folder of transformers has in float32.

    It gets no vocabulary, as tokens are all that goes through the pipes.
    """
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    sizes = Sizes(
        layers=config["num_hidden_layers"],
        context=config["max_position_embeddings"],
        embedding=config["hidden_size"],
        feed_forward=config["intermediate_size"],
        heads=heads,
        kv_heads=kv_heads,
        head=config["head_dim"],
        vocab=config["vocab_size"],
        eps=config["rms_norm_eps"],
        rope_base=config["rope_parameters"]["rope_theta"],
    )
    writer = llama_writer(out, sizes, "ALL_F32")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, sizes.layers)
    tensors = SafetensorsLocal(folder / "model.safetensors").tensors
    for name, tensor in tensors.items():
        assert tensor.dtype == "F32", name
        values = tensor.mmap_bytes().view(np.float32).reshape(tensor.shape)
        count = {"q_proj": heads, "k_proj": kv_heads}.get(name.split(".")[-2])
        if count:  # whose halves of a head are its turns in pairs, side by side
            halves = values.reshape(count, 2, -1, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        theirs = names.get_name(name, try_suffixes=(".weight",))
        assert theirs is not None, name
        writer.add_tensor(theirs, np.ascontiguousarray(values))
    write_out(writer)


def quantize(path: Path, kind: str, out: Path) -> None:
    """Let llama.cpp quantize a gguf.

    Raises:
        RuntimeError: it does not.
    """
    params = library.llama_model_quantize_default_params()
    params.ftype = KINDS[kind]
    status = library.llama_model_quantize(
        os.fsencode(path), os.fsencode(out), ctypes.byref(params)
    )
    if status:
        raise RuntimeError(f"llama_model_quantize returns {status}")


class Llama:
    """A model and a context, whose cache is float32 as that of kvc's recipes.

    It has one thread: several wait for each other in loops, where others work, too.
    """

    def __init__(self, path: Path, length: int) -> None:
        params = library.llama_model_default_params()
        model = library.llama_model_load_from_file(os.fsencode(path), params)
        settings = library.llama_context_default_params()
        settings.n_ctx = settings.n_batch = length
        settings.n_threads = settings.n_threads_batch = 1
        settings.type_k = settings.type_v = FLOAT32
        settings.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context: Any = model and library.llama_init_from_model(model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self._batch = library.llama_batch_init(length, 0, 1)
        vocabulary = library.llama_model_get_vocab(model)
        self.vocab: int = library.llama_vocab_n_tokens(vocabulary)

    def logits(self, tokens: np.ndarray, first: int) -> np.ndarray:
        """Return float32 [n, vocab], what predicted each token from `first` on.

        Raises:
            RuntimeError: it failed.
        """
        memory = library.llama_get_memory(self._context)
        library.llama_memory_clear(memory, True)
        batch, count = self._batch, len(tokens) - 1
        batch.n_tokens = count
        for at in range(count):
            batch.token[at], batch.pos[at] = int(tokens[at]), at
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
            batch.logits[at] = at >= first - 1
        status = library.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returns {status}")
        found = library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(found, (count - first + 1, self.vocab))


def answer(model: Llama, given: BinaryIO, out: BinaryIO) -> None:
    """Answer windows until there are no more: int32 n, first, n tokens; rows."""
    while head := given.read(8):
        count, first = np.frombuffer(head, np.int32)
        tokens = np.frombuffer(given.read(4 * int(count)), np.int32)
        found = model.logits(tokens, int(first))
        for at in range(0, len(found), ROWS):
            out.write(found[at : at + ROWS].tobytes())
        out.flush()


def sizes(path: Path) -> dict[str, object]:
    """Return the bytes of a file and of its tensors, and which types these have."""
    tensors = gguf.GGUFReader(path).tensors
    return {
        "nbytes": path.stat().st_size,
        "weights_nbytes": sum(int(tensor.n_bytes) for tensor in tensors),
        "types": sorted({tensor.tensor_type.name for tensor in tensors}),
    }


def main() -> None:
    """Do one stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    writer = stages.add_parser("float32")
    writer.add_argument("path", type=Path)
    writer.add_argument("out", type=Path)
    quantizer = stages.add_parser("quantize")
    quantizer.add_argument("path", type=Path)
    quantizer.add_argument("kind", choices=KINDS)
    quantizer.add_argument("out", type=Path)
    runner = stages.add_parser("logits")
    runner.add_argument("path", type=Path)
    runner.add_argument("--length", type=int, required=True)
    options = parser.parse_args()
    silence = library.llama_log_callback(lambda *_: None)
    library.llama_log_set(silence, None)
    library.llama_backend_init()
    match options.stage:
        case "float32":
            write = write_llama if options.path.is_dir() else write_float32
            write(options.path, options.out)
        case "quantize":
            quantize(options.path, options.kind, options.out)
        case _:
            model = Llama(options.path, options.length)
            told = {"vocab": model.vocab, **sizes(options.path)}
            sys.stdout.buffer.write(json.dumps(told).encode() + b"\n")
            sys.stdout.buffer.flush()
            answer(model, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
