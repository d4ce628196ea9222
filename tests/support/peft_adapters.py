"""Adapters that PEFT writes, with weights that change results."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from kvc.compiler.adapters.peft import read_peft
from kvc.runtime import Program
from kvc.runtime.adapters.adapter_file import write_adapter
from kvc.runtime.adapters.quantized import stored_layers


@contextmanager
def told_by_peft() -> Iterator[None]:
    """Ignore what PEFT warns of: names of transformers that it still asks for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@told_by_peft()
def save_adapter(
    model: PreTrainedModel,
    folder: Path,
    seed: int = 0,
    task: str = "CAUSAL_LM",
    **settings: object,
) -> Path:
    """Write a PEFT folder of a random adapter; the model stays as it was."""
    given = {"r": 4, "lora_alpha": 6, "target_modules": "all-linear"} | settings
    config = LoraConfig(task_type=task, **given)
    adapted = get_peft_model(copy.deepcopy(model), config)  # which it changes
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in adapted.named_parameters():
            trained = "lora_", "modules_to_save.default", ".bias"
            if any(part in name for part in trained) and tensor.requires_grad:
                noise = torch.randn(tensor.shape, generator=generator)
                if "magnitude" in name:
                    tensor.mul_(1 + 0.2 * noise)
                elif "lora_" not in name:
                    tensor.add_(0.05 * noise)
                else:
                    tensor.copy_(noise * 0.7 / tensor.shape[-1] ** 0.5)
    adapted.save_pretrained(str(folder))
    return folder


@told_by_peft()
def adapted_logits(
    model: PreTrainedModel,
    folder: Path,
    tokens: NDArray[np.int64],
    merged: bool = False,
    **others: NDArray[np.int64],
) -> NDArray[np.float32]:
    """Return what PEFT computes, [batch, seq, vocab]; the model stays as it was."""
    adapted = PeftModel.from_pretrained(copy.deepcopy(model), str(folder)).eval()
    if merged:
        adapted.merge_adapter()
    given = {name: torch.from_numpy(array) for name, array in others.items()}
    with torch.no_grad():
        made = adapted(input_ids=torch.from_numpy(tokens), **given)
    logits: NDArray[np.float32] = made.logits.numpy()
    return logits


def convert(
    folder: Path, program: Program, path: Path, base: Path | None = None
) -> Path:
    """Write the file of an adapter for a program, and return its path."""
    bare = program._engine.program
    layers = read_peft(folder, bare, base)
    write_adapter(path, program.identity, stored_layers(layers, bare))
    return path
