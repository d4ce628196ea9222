"""Slots for adapters in a model: more buffers, and a second body of each method.

In: a model whose methods are to be compiled. Out, for the time of the compilation: the
model with a buffer for each part of each layer that adapters can change, and with
methods `adapted_NAME`, in which `kvc::adapted` follows these layers. The bundle has no
bytes for the buffers. Sessions without adapters run the methods themselves, which are
compiled as without slots.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Final

import torch
from torch import Tensor, nn

from kvc.compiler.request.adapter_slots import AdapterSlots, wrong_setting
from kvc.compiler.request.spec import Dim, Method, StateSpec
from kvc.recipes import Recipe
from kvc.schema.adapters import (
    FACTORS,
    GAIN,
    OFFSET,
    PARTS,
    PREFIX,
    RANKS,
    ROWS,
    SCALES,
    A,
    B,
)
from kvc.schema.errors import BadModelSetting

_TRANSPOSED: Final = "Conv1D"  # transformers' linear layer with a matrix [in, out]


@dataclass(frozen=True, slots=True)
class Adaptable:
    """What is compiled in addition, for a model with slots.

    Attributes:
        methods: the methods for rows with adapters.
        states: the states that say which adapter each row has.
        slots: the names of the buffers that the bundle does not contain.
    """

    methods: tuple[Method, ...]
    states: tuple[StateSpec, ...]
    slots: tuple[str, ...]


_NOTHING: Final = Adaptable((), (), ())
_BACKENDS: Final = ("", "cpu")  # those whose programs can have adapters


@contextmanager
def adaptable(
    model: nn.Module,
    methods: Sequence[Method],
    states: Sequence[StateSpec],
    asked: AdapterSlots | None,
    recipes: Sequence[Recipe],
) -> Iterator[Adaptable]:
    """Give a model the slots that are asked for, for recipes that can have them.

    The matrices of adapters are float32 for recipes of float32 matrices, else int8 with
    a factor for each rank.

    Raises:
        BadModelSetting: as `with_slots`; or a recipe runs on another backend, or stores
            weights as bfloat16.
    """
    if asked is None:
        yield _NOTHING
        return
    for recipe in recipes:
        others = {recipe.backend, recipe.rest} - {*_BACKENDS}
        if others or recipe.weights != "float32":
            known = "a recipe such as cpu_fp32, cpu_q8 or cpu_q4"
            merged = "or a model that the adapter is merged into (merge_and_unload)"
            raise BadModelSetting(
                place="the request",
                setting="adapters",
                expected=f"{known}, {merged}",
                found=f"recipe {recipe.name}",
            )
    exact = all(recipe.linear == "float32" for recipe in recipes)
    dtype = torch.float32 if exact else torch.int8
    batch = next((one.batch for one in states if one.batch is not None), None)
    with with_slots(model, methods, asked, dtype=dtype, batch=batch) as given:
        yield given


@dataclass(slots=True)
class _Switch:
    """Whether the model is being run with adapters."""

    on: bool = field(default=False)


@contextmanager
def with_slots(
    model: nn.Module,
    methods: Sequence[Method],
    asked: AdapterSlots,
    *,
    dtype: torch.dtype = torch.float32,
    batch: Dim | None = None,
) -> Iterator[Adaptable]:
    """Give a model slots for adapters, for the time of its compilation.

    Args:
        model: the module whose methods are compiled.
        methods: the methods. The first axis of the inputs of the layers that adapters
            change must be that of the rows of the batch.
        asked: the number and the form of the adapters.
        dtype: the dtype of the adapters' matrices, float32 or int8.
        batch: the number of rows, if a session chooses it; None: one row.

    Raises:
        BadModelSetting: no layer of the model ends in one of the targets.
    """
    linear = linear_layers(model)
    whole = _named(linear, "whole", asked.whole)
    layers = _named(linear, "targets", asked.targets) if asked.targets else linear
    layers = {path: one for path, one in layers.items() if path not in whole} | whole
    switch = _Switch()
    added: list[tuple[nn.Module, str]] = []
    slots: list[str] = []
    hooks = []
    rows = torch.zeros(1, dtype=torch.int64), torch.zeros(1)
    try:
        for name, tensor in zip((ROWS, SCALES), rows, strict=True):
            model.register_buffer(name, tensor, persistent=False)
            added.append((model, name))
        for path, layer in layers.items():
            for name, tensor in _parts(layer, asked, dtype, path in whole).items():
                layer.register_buffer(name, tensor, persistent=False)
                added.append((layer, name))
                slots.append(f"{path}.{name}")
            hook = _hook(model, switch)
            hooks.append(layer.register_forward_hook(hook))
        bodies = []
        for method in methods:
            name, given = f"{PREFIX}{method.name}", getattr(model, method.name, None)
            if not callable(given):  # which is refused when it is captured
                continue
            vars(model)[name] = _adapted(given, switch)
            bodies.append(replace(method, name=name, adapts=method.name))
        states = tuple(StateSpec(n, batch=batch, given=True) for n in (ROWS, SCALES))
        yield Adaptable(tuple(bodies), states, tuple(slots))
    finally:
        for method in methods:
            vars(model).pop(f"{PREFIX}{method.name}", None)
        for hooked in hooks:
            hooked.remove()
        for module, name in added:
            del module._buffers[name]
            module._non_persistent_buffers_set.discard(name)


def _named(
    linear: Mapping[str, nn.Module], setting: str, names: Sequence[str]
) -> dict[str, nn.Module]:
    """Return path -> layer, for the linear layers whose paths end in one of the names.

    Raises:
        BadModelSetting: no layer ends in one of the names; `setting` has them.
    """
    for name in names:
        if not any(_ends_in(path, name) for path in linear):
            ends = sorted({path.rpartition(".")[2] for path in linear})
            known = f"the end of a linear layer's path: {', '.join(ends)}"
            raise wrong_setting(setting, known, name)
    return {
        path: one
        for path, one in linear.items()
        if any(_ends_in(path, name) for name in names)
    }


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return path -> layer, for the linear layers of a model."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) or type(module).__name__ == _TRANSPOSED
    }


def _ends_in(path: str, target: str) -> bool:
    return path == target or path.endswith(f".{target}")


def _parts(
    layer: nn.Module, asked: AdapterSlots, dtype: torch.dtype, whole: bool
) -> dict[str, Tensor]:
    """Return the buffers of a layer by name: zeros, which take no memory."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    results, inputs = weight.shape
    if type(layer).__name__ == _TRANSPOSED:
        results, inputs = inputs, results
    count, rank = asked.count + 1, inputs if whole else asked.rank
    parts = {
        B: torch.zeros(count, rank, results, dtype=dtype),
        RANKS: torch.zeros(count, dtype=torch.int64),
    }
    if dtype == torch.int8:
        parts[FACTORS] = torch.zeros(count, rank)
    if not whole:
        parts[A] = torch.zeros(count, rank, inputs, dtype=dtype)
    if whole or asked.gains:
        parts |= {name: torch.zeros(count, results) for name in (GAIN, OFFSET)}
    return parts


def _hook(
    model: nn.Module, switch: _Switch
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
    """Return a hook that adapts the result of a layer, if the switch is on."""

    def adapt(
        layer: nn.Module, given: tuple[Tensor, ...], made: Tensor
    ) -> Tensor | None:
        if not switch.on:
            return None
        x, y = given[0], made
        rows, scales = model.get_buffer(ROWS), model.get_buffer(SCALES)
        if x.dim() == 2:  # rows after rows
            x, y = (each.view(rows.shape[0], -1, each.shape[-1]) for each in (x, y))
        a, b, factors, ranks, *more = (getattr(layer, name, None) for name in PARTS)
        found: Tensor = torch.ops.kvc.adapted(
            y, x, a, b, factors, ranks, rows, scales, *more
        )
        return found.view(made.shape)

    return adapt


def _adapted(method: Callable[..., object], switch: _Switch) -> Callable[..., object]:
    """Return a method that runs with the switch on."""

    @wraps(method)
    def run(*args: object, **kwargs: object) -> object:
        switch.on = True
        try:
            return method(*args, **kwargs)
        finally:
            switch.on = False

    return run
