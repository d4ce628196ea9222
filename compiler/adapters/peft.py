"""Read an adapter in PEFT's format, as parts for the slots of a program.

In: a folder with adapter_config.json and adapter_model.safetensors, the slots of a
program, and for some adapters the weights of the model that they were trained on. Out:
the parts of each layer (`schema/adapters.py`). Their sum is the one that PEFT computes:
scale * B (A x), with the scale alpha / r, or alpha / sqrt(r) if rank-stabilised
(Kalajdzievski, 2023); of DoRA (Liu et al., 2024) m / |W + scale B A| times that sum and
W x. Ranks and alphas are those of the patterns that match a layer's path.
"""

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvc.compiler.checkpoints import Checkpoint
from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.schema.adapters import GAIN, OFFSET, A, B, slots_of
from kvc.schema.errors import BadAdapter, CheckpointError, listing, reason_of
from kvc.schema.model import Program

_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
_MAGNITUDE: Final = "lora_magnitude_vector"
# Suffixes of names in a file, and the part of an adapter that each is.
_ENDS: Final = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_B.bias": "b_bias",
    f".{_MAGNITUDE}": "magnitude",
    f".{_MAGNITUDE}.weight": "magnitude",
    ".base_layer.bias": "bias",
    ".weight": "weight",
    ".bias": "bias",
}
# Settings that change what an adapter computes and that kvc does not have.
_OTHERS: Final = (
    "alora_invocation_tokens", "layer_replication", "target_parameters", "use_qalora",
    "use_bdlora", "arrow_config", "trainable_token_indices", "megatron_config",
    "kasa_config", "monteclora_config",
)  # fmt: skip
Parts = dict[str, npt.NDArray[np.float32]]


@dataclass(slots=True)
class _Layer:
    """The tensors that an adapter has for one layer, by `_ENDS`."""

    tensors: dict[str, FileTensor] = field(default_factory=dict)

    def read(self, name: str) -> Tensor | None:
        """Return a tensor as float64, None if there is none."""
        found = self.tensors.get(name)
        if found is None:
            return None
        count = int(np.prod(found.shape, dtype=np.int64))
        return found.elements(0, count).reshape(found.shape).double()


@dataclass(frozen=True, slots=True)
class _Config:
    """adapter_config.json of a LoRA adapter, as far as results depend on it."""

    folder: str
    rank: int
    alpha: float
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]
    stabilised: bool
    transposed: bool

    def scale(self, path: str) -> float:
        """Return what multiplies the products of a layer's matrices."""
        rank = _matching(self.ranks, path, self.rank)
        alpha = _matching(self.alphas, path, self.alpha)
        return float(alpha) / (rank**0.5 if self.stabilised else rank)


def read_peft(
    folder: str | os.PathLike[str],
    program: Program,
    base: str | os.PathLike[str] | None = None,
) -> dict[str, Parts]:
    """Return the parts of an adapter by path of the layer, float32.

    Args:
        folder: the folder that PEFT's `save_pretrained` wrote.
        program: the program whose slots the adapter is for.
        base: the folder of the model that the adapter was trained on; only DoRA,
            trained biases and whole matrices need it.

    Raises:
        BadAdapter: a file is missing or damaged, the adapter is none that kvc computes,
            or the program has no slots for it.
        CheckpointError: the weights of the adapter, or of `base`, cannot be read.
    """
    path = os.fspath(folder)
    config = _read_config(path)
    slots = slots_of(program)
    if not slots:
        raise _bad(path, "the bundle has no slots; compile it with --adapters")
    with ExitStack() as stack:
        weights = stack.enter_context(_opened(path))
        layers = _sorted(weights, path)
        model = None if base is None else stack.enter_context(Checkpoint(base))
        missing = sorted(layers.keys() - slots.keys())
        if missing:
            reason = (
                f"the bundle has no slots for {listing(missing)}; compile it with "
                "--adapters and these layers among its targets"
            )
            raise _bad(path, reason)
        reading = _Reading(config, model)
        return {
            name: reading.parts(name, layer, A not in slots[name])
            for name, layer in layers.items()
        }


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads the layers of one adapter.

    Attributes:
        config: the adapter's settings.
        model: the weights of the model that the adapter was trained on, None if the
            caller gave none.
    """

    config: _Config
    model: Checkpoint | None

    def parts(self, path: str, layer: _Layer, whole: bool) -> Parts:
        """Return the parts of a layer; `whole`: the slots take a whole matrix."""
        a, b, weight = layer.read("a"), layer.read("b"), layer.read("weight")
        if (weight is not None) != whole or (a is None) != (b is None):
            what = "a whole matrix" if weight is not None else "matrices of low rank"
            other = "matrices of low rank" if weight is not None else "a whole matrix"
            reason = f"it has {what} of {path}, and the bundle's slots take {other}"
            raise _bad(self.config.folder, f"{reason} (--adapters ...,whole=NAME)")
        bias = layer.read("bias")
        if weight is not None:
            offset = torch.zeros(len(weight)) if bias is None else bias
            made = {B: weight.T, GAIN: torch.zeros(len(weight)), OFFSET: offset}
            return _as_float32(made)
        assert a is not None
        assert b is not None
        if a.shape[:1] != b.shape[1:]:
            reason = f"{path} has matrices {list(a.shape)} and {list(b.shape)}"
            raise _bad(self.config.folder, reason)
        scale = self.config.scale(path)
        gain, added = torch.ones(len(b), dtype=torch.float64), scale * b
        offset = torch.zeros_like(gain)
        if (extra := layer.read("b_bias")) is not None:
            offset = offset + scale * extra
        magnitude = layer.read("magnitude")
        if magnitude is not None:
            norm = (self._weight(path) + added @ a).norm(dim=1)
            gain = magnitude.reshape(-1) / norm
            offset, added = offset * gain, added * gain[:, None]
            offset = offset + (1 - gain) * self._bias(path, len(gain))
        if bias is not None:
            offset = offset + bias - self._bias(path, len(gain))
        made = {A: a, B: added.T}
        if magnitude is not None or bias is not None or extra is not None:
            made |= {GAIN: gain, OFFSET: offset}
        return _as_float32(made)

    def _weight(self, path: str) -> Tensor:
        """Return a layer's weight in the model, float64 [out, in]."""
        weight = self._of_model(f"{path}.weight")
        if weight is None:
            assert self.model is not None
            raise _bad(self.config.folder, f"{self.model.path} has no {path}.weight")
        return weight.T if self.config.transposed else weight

    def _bias(self, path: str, width: int) -> Tensor:
        """Return a layer's bias in the model, zeros if it has none."""
        found = self._of_model(f"{path}.bias")
        return torch.zeros(width, dtype=torch.float64) if found is None else found

    def _of_model(self, name: str) -> Tensor | None:
        if self.model is None:
            reason = (
                f"{name.rpartition('.')[0]} needs the weights of the model (DoRA, or a "
                "trained bias); give its folder, with --model"
            )
            raise _bad(self.config.folder, reason)
        found = self.model.tensors.get(name)
        return None if found is None else _Layer({"": found}).read("")


def _as_float32(parts: Mapping[str, Tensor]) -> Parts:
    return {name: part.float().contiguous().numpy() for name, part in parts.items()}


def _bad(path: str, reason: str) -> BadAdapter:
    return BadAdapter(path=path, reason=reason)


def _opened(folder: str) -> Checkpoint:
    """Open the weights of an adapter.

    Raises:
        BadAdapter: there is no file of them.
        CheckpointError: the file is damaged.
    """
    file = Path(folder) / _WEIGHTS
    if not file.is_file():
        pickled = (Path(folder) / "adapter_model.bin").is_file()
        advice = ", and adapter_model.bin is a pickle, which kvc does not open"
        raise _bad(folder, f"it has no {_WEIGHTS}{advice if pickled else ''}")
    try:
        return Checkpoint(file)
    except CheckpointError as error:
        raise _bad(folder, str(error)) from error


def _read_config(folder: str) -> _Config:
    """Return the settings of an adapter.

    Raises:
        BadAdapter: there are none, or they are of an adapter that kvc does not compute.
    """
    try:
        found = json.loads((Path(folder) / _CONFIG).read_text("utf-8"))
    except OSError as error:
        raise _bad(folder, f"{_CONFIG}: {reason_of(error)}") from error
    except ValueError as error:
        raise _bad(folder, f"{_CONFIG} is not JSON") from error
    if not isinstance(found, dict):
        raise _bad(folder, f"{_CONFIG} is not a JSON object")
    kind = found.get("peft_type")
    if kind != "LORA":
        raise _bad(folder, f"it is an adapter of type {kind!r}, kvc has LORA and DoRA")
    others = [name for name in _OTHERS if found.get(name)]
    if others:
        raise _bad(folder, f"kvc does not compute its {listing(others)}")
    rank, alpha = found.get("r"), found.get("lora_alpha")
    ranks, alphas = found.get("rank_pattern") or {}, found.get("alpha_pattern") or {}
    numbers = (rank, alpha, *_values(ranks), *_values(alphas))
    if not all(isinstance(n, int | float) and n > 0 for n in numbers):
        raise _bad(folder, f"{_CONFIG} has wrong ranks or alphas")
    assert isinstance(rank, int | float)
    assert isinstance(alpha, int | float)
    return _Config(
        folder,
        int(rank),
        float(alpha),
        ranks,
        alphas,
        bool(found.get("use_rslora")),
        bool(found.get("fan_in_fan_out")),
    )


def _values(pattern: object) -> tuple[object, ...]:
    return tuple(pattern.values()) if isinstance(pattern, dict) else (None,)


def _matching(patterns: Mapping[str, float], path: str, usual: float) -> float:
    """Return the value of the first pattern that matches the end of a path, as PEFT."""
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except re.error:
            continue
    return usual


def _sorted(weights: Checkpoint, folder: str) -> dict[str, _Layer]:
    """Return the tensors of an adapter by path of the layer.

    Raises:
        BadAdapter: a name is none that an adapter of linear layers has.
    """
    layers: dict[str, _Layer] = {}
    for name, tensor in weights.tensors.items():
        rest = name.removeprefix(_PREFIX)
        end = next((end for end in _ENDS if rest.endswith(end)), None)
        if rest == name or end is None:
            raise _bad(folder, f"kvc does not compute its tensor {name!r}")
        path = rest.removesuffix(end)
        layers.setdefault(path, _Layer()).tensors[_ENDS[end]] = tensor
    if not layers:
        raise _bad(folder, "it has no tensors")
    return layers
