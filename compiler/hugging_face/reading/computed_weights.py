"""Tensors that a model computes where a checkpoint lacks them, such as tables of sines.

In: a model made without memory, what its checkpoint has. Out: the tensors that the
model says may be missing, and that are no weights: buffers, and parameters that are
never trained. transformers computes them when it loads such a folder.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kvc.compiler.checkpoints.loading import NamedTensor


@dataclass(frozen=True, slots=True)
class ComputedTensor:
    """A tensor in memory; a `NamedTensor`."""

    name: str
    path: str
    values: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Return its sizes."""
        return tuple(self.values.shape)

    @property
    def dtype(self) -> torch.dtype | None:
        """Return its dtype."""
        return self.values.dtype

    @property
    def kind(self) -> str:
        """Return its dtype, for a message."""
        return str(self.dtype)

    def elements(self, begin: int, end: int) -> Tensor:
        """Return a range of its elements, in order, as a flat tensor."""
        return self.values.reshape(-1)[begin:end]


def computed(
    model: PreTrainedModel, found: Mapping[str, NamedTensor], path: str
) -> dict[str, NamedTensor]:
    """Return what a model computes of what a checkpoint lacks, by name.

    Args:
        model: with empty parameters.
        found: what the checkpoint has, by the model's names.
        path: of the checkpoint.
    """
    patterns = model._keys_to_ignore_on_load_missing or ()
    missing = [name for name in model.state_dict() if name not in found]
    made = dict[str, NamedTensor]()
    for name in missing:
        if any(re.search(pattern, name) for pattern in patterns):
            values = _values(model, name)
            if values is not None:
                made[name] = ComputedTensor(name, path, values)
    return made


def _values(model: PreTrainedModel, name: str) -> Tensor | None:
    """Return a tensor as a model makes it; None of a weight, which is trained."""
    place, _, own = name.rpartition(".")
    module = model.get_submodule(place)
    buffer = module._buffers.get(own)
    if buffer is not None:
        return buffer.detach().clone()
    before = module._parameters[own]
    if before is None or before.requires_grad:
        return None
    real = nn.Parameter(torch.empty(before.shape, dtype=before.dtype), False)
    module._parameters[own] = real
    try:
        # What it draws first, and then overwrites, is not to change the caller's.
        with torch.random.fork_rng(devices=[]):
            model._init_weights(module)  # type: ignore[no-untyped-call]
    finally:
        module._parameters[own] = before
    return real.detach()
