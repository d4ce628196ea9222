"""Random sharded checkpoints of a given size, and the decoder that they fit.

Written block by block, so that making one takes no more memory than reading one.
"""

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np

from kvc.compiler import empty_parameters
from kvc.compiler.models.decoder import Decoder, DecoderConfig

DIM, FFN, VOCAB, HEADS, KV_HEADS = 2048, 5632, 32000, 32, 8
SHARD_NBYTES = 1 << 30
BLOCK_ELEMENTS = 1 << 22
INDEX = "model.safetensors.index.json"


def config_of(nbytes: float) -> DecoderConfig:
    """Return the sizes of a float32 decoder of about so many bytes."""
    head = DIM // HEADS * KV_HEADS
    layer = 4 * (2 * DIM * DIM + 2 * DIM * head + 3 * DIM * FFN + 2 * DIM)
    layers = max(1, round((nbytes - 4 * VOCAB * DIM) / layer))
    return DecoderConfig(
        vocab=VOCAB,
        dim=DIM,
        layers=layers,
        heads=HEADS,
        kv_heads=KV_HEADS,
        ffn=FFN,
        capacity=256,
    )


def empty_decoder(config: DecoderConfig) -> Decoder:
    """Return the model without memory for its parameters."""
    with empty_parameters():
        return Decoder(config).eval()


def write_checkpoint(folder: Path, config: DecoderConfig) -> dict[str, int]:
    """Write a seeded checkpoint; return its bytes and those of its largest tensor."""
    named = empty_decoder(config).named_parameters()
    return write_tensors(folder, {name: tuple(p.shape) for name, p in named})


def write_tensors(
    folder: Path, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Write random float32 tensors; return as `write_checkpoint`."""
    generator = np.random.Generator(np.random.SFC64(0))
    shards = list(_shards(shapes))
    table = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / file, {name: shapes[name] for name in names}, generator)
        table |= dict.fromkeys(names, file)
    text = json.dumps({"metadata": {}, "weight_map": table})
    (folder / INDEX).write_text(text)
    sizes = [4 * prod(shape) for shape in shapes.values()]
    return {"checkpoint": sum(sizes), "largest": max(sizes)}


def _shards(shapes: dict[str, tuple[int, ...]]) -> Iterator[list[str]]:
    names, nbytes = [], 0
    for name, shape in shapes.items():
        if names and nbytes + 4 * prod(shape) > SHARD_NBYTES:
            yield names
            names, nbytes = [], 0
        names.append(name)
        nbytes += 4 * prod(shape)
    yield names


def _write_shard(
    path: Path, shapes: dict[str, tuple[int, ...]], generator: np.random.Generator
) -> None:
    header, at = {}, 0
    for name, shape in shapes.items():
        places = [at, at + 4 * prod(shape)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": places}
        at = places[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            for block in _numbers(shape, generator):
                file.write(block.data)


def _numbers(
    shape: tuple[int, ...], generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield the numbers of a tensor: ones for norms, else normal ones."""
    for begin in range(0, prod(shape), BLOCK_ELEMENTS):
        count = min(BLOCK_ELEMENTS, prod(shape) - begin)
        if len(shape) == 1:
            yield np.ones(count, np.float32)
        else:
            block = generator.standard_normal(count, dtype=np.float32)
            yield np.multiply(block, np.float32(shape[1] ** -0.5), out=block)
