"""Write checkpoints for tests, valid and invalid ones; make models without memory."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kvc.compiler import Checkpoint, empty_parameters
from kvc.compiler.checkpoints.filled import attached
from kvc.compiler.weights.weight_reader import read


def raw_file(path: Path, header: object, content: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


def entry(begin: int, end: int, shape: object, dtype: object = "F32") -> object:
    """Return the entry of a tensor in the header of a safetensors file."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def sharded(folder: Path, shards: Mapping[str, Mapping[str, Tensor]]) -> Path:
    for name, tensors in shards.items():
        save_file(dict(tensors), folder / name)
    table = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    return indexed(folder, table)


def indexed(folder: Path, table: object) -> Path:
    text = json.dumps({"metadata": {}, "weight_map": table})
    (folder / "model.safetensors.index.json").write_text(text)
    return folder


def numbers(*shape: int) -> Tensor:
    """Return a float32 tensor of the numbers 0, 1, 2 and so on."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


def empty(kind: Callable[[], nn.Module]) -> nn.Module:
    with empty_parameters():
        return kind()


def saved(folder: Path, **tensors: Tensor) -> Checkpoint:
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint(folder)


def values(parameter: Tensor) -> Tensor:
    source = attached(parameter)
    assert source is not None
    return read(source)
