"""A folder is compiled without its weights ever being in memory together."""

import threading
from contextlib import contextmanager

import torch
from checkpoint_files import raw_file
from hf_folders import SIZES
from resident_memory import LINUX, resident_nbytes
from transformers import LlamaConfig, LlamaForCausalLM

from kvc.compiler import CacheConfig, empty_parameters, export_hf

WIDTH, VOCABULARY = 256, 400_000  # 410 MB as float32, 205 MB as they are stored
LARGEST = 190 << 20


@contextmanager
def watched():
    """Yield a list that gets the most anonymous memory that this process had."""
    peak, done = [resident_nbytes()], threading.Event()

    def look():
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident_nbytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def sparse_folder(folder):
    """Write a folder whose weights are zeros that take no room on disk."""
    sizes = SIZES | {
        "hidden_size": WIDTH,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": 1,
        "tie_word_embeddings": True,
    }
    config = LlamaConfig(**sizes, dtype=torch.bfloat16)
    config.save_pretrained(folder)
    with empty_parameters():
        model = LlamaForCausalLM(config)
    header, end = {}, 0
    for name, parameter in model.named_parameters():
        begin, end = end, end + 2 * parameter.numel()
        header[name] = {
            "dtype": "BF16",
            "shape": list(parameter.shape),
            "data_offsets": [begin, end],
        }
    path = raw_file(folder / "model.safetensors", header, b"")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + end)
    return folder


@LINUX
def test_the_peak_is_far_below_the_weights(tmp_path):
    folder = sparse_folder(tmp_path)
    before = resident_nbytes()
    with watched() as peak:
        cache = CacheConfig(max_length=64)
        bundle = export_hf(folder, recipe="xnnpack_q8", cache=cache)
        report = bundle.save(tmp_path / "model.kvc")
    assert bundle.model_nbytes > 2 * LARGEST > report.file_nbytes
    assert peak[0] - before < LARGEST
