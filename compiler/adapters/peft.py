"""Read an adapter in PEFT's format, as parts for the slots of a program.

In: a folder with adapter_config.json and adapter_model.safetensors, the slots of a
program, and for some adapters the weights of the model that they were trained on. Out:
the parts of each layer (`schema/adapters.py`). Their sum is the one that PEFT computes:
scale * B (A x), with the scale alpha / r, or alpha / sqrt(r) if rank-stabilised
(Kalajdzievski, 2023); of DoRA (Liu et al., 2024) m / |W + scale B A| times that sum and
W x. Ranks and alphas are those of the patterns that match a layer's path.
"""

import os
import re
from collections.abc import Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvc.compiler.adapters.peft_config import CONFIG, Config, bad, read_config
from kvc.compiler.checkpoints import Checkpoint
from kvc.compiler.checkpoints.tensor_file import FileTensor
from kvc.schema.adapters import GAIN, OFFSET, A, B, slots_of
from kvc.schema.errors import BadAdapter, CheckpointError, listing
from kvc.schema.model import NamedData, Program

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
_LOW: Final = frozenset({"a", "b", "b_bias", "magnitude"})
# The adapter's name, and what it follows, in names of older files.
_NAMED: Final = re.compile(
    rf"(?:(\.lora_[AB]|\.{_MAGNITUDE})|\.modules_to_save)\.default(?=\.|$)"
)
_Layer = dict[str, FileTensor]  # the tensors of a layer, by `_ENDS`
Parts = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class _Form:
    """What the slots of a layer take.

    Attributes:
        inputs: the number of inputs of the layer.
        results: the number of results.
        whole: whether it is a whole matrix rather than two of low rank.
    """

    inputs: int
    results: int
    whole: bool


def read_peft(
    folder: str | os.PathLike[str],
    program: Program,
    base: str | os.PathLike[str] | None = None,
) -> dict[str, Parts]:
    """Return the parts of an adapter by path of the layer, float32.

    Layers without slots to which the adapter adds zeros are left out.

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
    config = read_config(path)
    slots = slots_of(program)
    if not slots:
        raise bad(path, "the bundle has no slots; compile it with --adapters")
    with ExitStack() as stack:
        weights = stack.enter_context(_opened(path))
        layers = _with_slots(_sorted(weights, path), slots.keys(), path)
        model = None if base is None else stack.enter_context(Checkpoint(base))
        reading = _Reading(config, model)
        return {
            name: reading.parts(name, layer, _form(slots[name]))
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

    config: Config
    model: Checkpoint | None

    def parts(self, path: str, layer: _Layer, form: _Form) -> Parts:
        """Return the parts of a layer for slots of a form."""
        self._check_names(path, layer, form.whole)
        self._check_shapes(path, layer, form)
        if "weight" in layer:
            made = _whole(layer)
        elif "a" in layer:
            made = self._low_rank(path, layer, form)
        else:
            made = self._bias_only(path, layer, form)
        return self._as_float32(path, made)

    def _check_names(self, path: str, layer: _Layer, whole: bool) -> None:
        """Check that the tensors of a layer go together, and with its slots."""
        low = bool(_LOW & layer.keys())
        if low and "weight" in layer:
            raise self._bad(f"it has a whole matrix of {path}, and others of low rank")
        if low and not {"a", "b"} <= layer.keys():
            raise self._bad(f"it has only one of the matrices lora_A, lora_B of {path}")
        if low and whole:
            reason = f"it has matrices of low rank of {path}, and the bundle's slots "
            advice = "compile it with --adapters, without whole= for this layer"
            raise self._bad(f"{reason}take a whole matrix; {advice}")
        if "weight" in layer and not whole:
            reason = f"it has a whole matrix of {path}, and the bundle's slots take "
            advice = "compile it with --adapters ...,whole=NAME"
            raise self._bad(f"{reason}matrices of low rank; {advice}")

    def _check_shapes(self, path: str, layer: _Layer, form: _Form) -> None:
        rank, results = self.config.rank(path), form.results
        shapes: dict[str, tuple[tuple[int, ...], ...]] = {
            "a": ((rank, form.inputs),),
            "b": ((results, rank),),
            "weight": ((results, form.inputs),),
            "magnitude": ((results,), (1, results), (results, 1)),
        }
        for part, tensor in layer.items():
            expected = shapes.get(part, ((results,),))
            if tensor.shape not in expected:
                of = f" of rank {rank} ({CONFIG})" if part in ("a", "b") else ""
                reason = f"{tensor.name} is {list(tensor.shape)}, expected "
                raise self._bad(f"{reason}{list(expected[0])}{of}")

    def _low_rank(self, path: str, layer: _Layer, form: _Form) -> dict[str, Tensor]:
        a, b = _read(layer["a"]), _read(layer["b"])
        scale = self.config.scale(path)
        gain, added = torch.ones(form.results, dtype=torch.float64), scale * b
        offset = torch.zeros_like(gain)
        if "b_bias" in layer:
            offset = offset + scale * _read(layer["b_bias"])
        if "magnitude" in layer:
            norm = (self._weight(path, form) + added @ a).norm(dim=1)
            gain = _read(layer["magnitude"]).reshape(-1) / norm
            offset, added = offset * gain, added * gain[:, None]
            offset = offset + (1 - gain) * self._bias(path, form)
        if "bias" in layer:
            offset = offset + _read(layer["bias"]) - self._bias(path, form)
        made = {A: a, B: added.T}
        if layer.keys() - {"a", "b"}:
            made |= {GAIN: gain, OFFSET: offset}
        return made

    def _bias_only(self, path: str, layer: _Layer, form: _Form) -> dict[str, Tensor]:
        """Return the parts of a layer of which only the bias was trained."""
        offset = _read(layer["bias"]) - self._bias(path, form)
        made = {} if form.whole else {A: torch.zeros(1, form.inputs)}
        gain = torch.ones(form.results)
        return made | {B: torch.zeros(1, form.results), GAIN: gain, OFFSET: offset}

    def _weight(self, path: str, form: _Form) -> Tensor:
        """Return a layer's weight in the model, float64 [out, in]."""
        straight, turned = (form.results, form.inputs), (form.inputs, form.results)
        weight = self._of_model(f"{path}.weight", {straight, turned})
        if weight is None:
            assert self.model is not None
            raise self._bad(f"{self.model.path} has no {path}.weight")
        square = straight == turned  # else the shape tells, whatever the settings say
        other = self.config.transposed if square else weight.shape == turned
        return weight.T if other else weight

    def _bias(self, path: str, form: _Form) -> Tensor:
        """Return a layer's bias in the model, zeros if it has none."""
        found = self._of_model(f"{path}.bias", {(form.results,)})
        if found is None:
            return torch.zeros(form.results, dtype=torch.float64)
        return found

    def _of_model(self, name: str, shapes: set[tuple[int, ...]]) -> Tensor | None:
        """Return a tensor of the model as float64, None if it has none."""
        if self.model is None:
            reason = (
                f"{name.rpartition('.')[0]} needs the weights of the model (DoRA, or a "
                "trained bias); give its folder, with --model"
            )
            raise self._bad(reason)
        found = self.model.tensors.get(name)
        if found is None:
            return None
        if found.shape not in shapes or not _is_float(found):
            expected = " or ".join(str(list(shape)) for shape in sorted(shapes))
            reason = f"{name} of {self.model.path} is {found.kind} {list(found.shape)}"
            raise self._bad(f"{reason}, expected floats {expected}")
        return _read(found)

    def _as_float32(self, path: str, parts: Mapping[str, Tensor]) -> Parts:
        made = {name: part.float().contiguous() for name, part in parts.items()}
        for name, part in made.items():
            if not part.isfinite().all():
                raise self._bad(
                    f"{path}.{name} has numbers that are not finite float32"
                )
        return {name: part.numpy() for name, part in made.items()}

    def _bad(self, reason: str) -> BadAdapter:
        return bad(self.config.folder, reason)


def _whole(layer: _Layer) -> dict[str, Tensor]:
    """Return the parts of a layer that replace its matrix and its bias."""
    weight = _read(layer["weight"])
    zeros = torch.zeros(len(weight))
    offset = _read(layer["bias"]) if "bias" in layer else zeros
    return {B: weight.T, GAIN: zeros, OFFSET: offset}


def _form(slots: Mapping[str, tuple[int, NamedData]]) -> _Form:
    """Return the form of a layer's slots."""
    _, rank, results = slots[B][1].type.dims
    inputs = slots[A][1].type.dims[2] if A in slots else rank
    assert isinstance(inputs, int), "named data has no symbols"
    assert isinstance(results, int), "named data has no symbols"
    return _Form(inputs, results, A not in slots)


def _read(tensor: FileTensor) -> Tensor:
    """Return a tensor as float64."""
    count = int(np.prod(tensor.shape, dtype=np.int64))
    return tensor.elements(0, count).reshape(tensor.shape).double()


def _is_float(tensor: FileTensor) -> bool:
    return tensor.dtype is not None and tensor.dtype.is_floating_point


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
        raise bad(folder, f"it has no {_WEIGHTS}{advice if pickled else ''}")
    try:
        return Checkpoint(file)
    except CheckpointError as error:
        raise bad(folder, str(error)) from error


def _sorted(weights: Checkpoint, folder: str) -> dict[str, _Layer]:
    """Return the tensors of an adapter by path of the layer.

    Raises:
        BadAdapter: a name is none that an adapter of linear layers has, two are of the
            same part, or a tensor is not of floats.
    """
    layers: dict[str, _Layer] = {}
    for name, tensor in weights.tensors.items():
        rest = _without_name(name.removeprefix(_PREFIX))
        end = next((end for end in _ENDS if rest.endswith(end)), None)
        if not name.startswith(_PREFIX) or end is None:
            raise bad(folder, f"kvc does not compute its tensor {name!r}")
        if not _is_float(tensor):
            raise bad(folder, f"{name} is {tensor.kind}, expected floats")
        layer, part = layers.setdefault(rest.removesuffix(end), {}), _ENDS[end]
        if part in layer:
            raise bad(folder, f"{name} and {layer[part].name} are the same part")
        layer[part] = tensor
    if not layers:
        raise bad(folder, "it has no tensors")
    return layers


def _without_name(name: str) -> str:
    """Return a tensor's name as newer files have it, without the adapter's name."""
    return _NAMED.sub(r"\1", name)


def _with_slots(
    layers: Mapping[str, _Layer], known: Set[str], folder: str
) -> dict[str, _Layer]:
    """Return the layers that have slots; the others must add nothing.

    Raises:
        BadAdapter: a layer without slots changes results, or all of them add nothing.
    """
    others = [path for path in layers if path not in known]
    missing = sorted(path for path in others if not _is_idle(layers[path]))
    if missing:
        reason = (
            f"the bundle has no slots for {listing(missing)}; compile with these "
            "layers among the targets of --adapters; layers that the compiled model "
            "never runs, such as an unused vision layer, cannot have slots"
        )
        raise bad(folder, reason)
    if len(others) == len(layers):
        raise bad(folder, "it changes nothing: all its matrices lora_B are zero")
    return {path: layer for path, layer in layers.items() if path in known}


def _is_idle(layer: _Layer) -> bool:
    """Tell whether a layer of an adapter adds zeros."""
    if not {"a", "b"} <= layer.keys() <= {"a", "b", "b_bias"}:
        return False
    zero = not any(_read(layer[part]).any() for part in layer.keys() - {"a"})
    return zero and bool(_read(layer["a"]).isfinite().all())
