"""Slots for adapters in a model: more buffers, and a second body of each method.

In: a model whose methods are to be compiled. Out, for the time of the compilation: the
model with a buffer for each part of each layer that adapters can change, and with
methods `adapted_NAME`, in which `kvc::adapted` follows these layers. The bundle has no
bytes for the buffers. Sessions without adapters run the methods themselves, which are
compiled as without slots.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Final

import torch
from torch import Tensor, nn

from kvc.compiler.ir import Constant
from kvc.compiler.request.adapter_slots import AdapterSlots, wrong_setting
from kvc.compiler.request.spec import Dim, Method, StateSpec
from kvc.compiler.weights.sources import Slot
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


def check_used(given: Adaptable, constants: Iterable[Constant]) -> None:
    """Check that methods call at least one of the layers that have slots.

    Raises:
        BadModelSetting: the constants of the program are no slots.
    """
    used = any(isinstance(constant.source, Slot) for constant in constants)
    if given.slots and not used:
        found = ", ".join(given.slots[:3])
        raise wrong_setting("targets", "layers that the methods call", found)


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
        BadModelSetting: no layer of the model ends in one of the names, the model has
            no linear layers, or a layer does not compute rows of the batch in float32.
    """
    layers, whole = _chosen_layers(model, methods, asked)
    switch = _Switch()
    with ExitStack() as stack:
        for name, tensor in ((ROWS, torch.zeros(1).long()), (SCALES, torch.zeros(1))):
            _add_buffer(stack, model, name, tensor)
        slots = []
        for path, layer in layers.items():
            for name, tensor in _parts(layer, asked, dtype, path in whole).items():
                _add_buffer(stack, layer, name, tensor)
                slots.append(f"{path}.{name}".removeprefix("."))
            hook = _hook(model, path, switch)
            hooked = layer.register_forward_hook(hook, with_kwargs=True)
            stack.callback(hooked.remove)
        bodies = []
        for method in methods:
            name, given = f"{PREFIX}{method.name}", getattr(model, method.name, None)
            if callable(given):  # any other is refused when it is captured
                vars(model)[name] = _adapted(given, switch)
                stack.callback(vars(model).pop, name)
                bodies.append(replace(method, name=name, adapts=method.name))
        states = tuple(StateSpec(n, batch=batch, given=True) for n in (ROWS, SCALES))
        yield Adaptable(tuple(bodies), states, tuple(slots))


def _add_buffer(stack: ExitStack, module: nn.Module, name: str, tensor: Tensor) -> None:
    """Register a buffer until the stack is closed."""
    module.register_buffer(name, tensor, persistent=False)
    stack.callback(module._non_persistent_buffers_set.discard, name)
    stack.callback(module._buffers.pop, name)


def _chosen_layers(
    model: nn.Module, methods: Sequence[Method], asked: AdapterSlots
) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Return path -> layer for all layers with slots, and for those of whole matrices.

    Raises:
        BadModelSetting: as `with_slots`.
    """
    for method in methods:
        if method.name.startswith(PREFIX):
            expected = f"methods whose names do not begin with {PREFIX}"
            raise wrong_setting("count", expected, method.name)
    for name in (ROWS, SCALES):
        if hasattr(model, name):
            raise wrong_setting("count", f"a model without a buffer {name}", name)
    linear = linear_layers(model)
    plain = {path: one for path, one in linear.items() if isinstance(one, nn.Linear)}
    whole = named_layers(plain, "whole", asked.whole)
    layers = named_layers(linear, "targets", asked.targets) if asked.targets else linear
    layers = {path: one for path, one in layers.items() if path not in whole} | whole
    if not layers:
        expected = "a model with linear layers"
        raise wrong_setting("targets", expected, type(model).__name__)
    return layers, whole


def named_layers(
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


def _hook(model: nn.Module, path: str, switch: _Switch) -> Callable[..., Tensor | None]:
    """Return a hook that adapts the result of the layer at a path, if the switch is on.

    Raises:
        BadModelSetting: when it runs: the first axis of the layer's input is not that
            of the rows, or the layer does not compute in float32.
    """

    def adapt(
        layer: nn.Module,
        given: tuple[Tensor, ...],
        named: Mapping[str, Tensor],
        made: Tensor,
    ) -> Tensor | None:
        if not switch.on:
            return None
        x, y = (*given, *named.values())[0], made
        rows, scales = model.get_buffer(ROWS), model.get_buffer(SCALES)
        if x.dim() == 2:  # rows after rows
            x, y = (each.view(rows.shape[0], -1, each.shape[-1]) for each in (x, y))
        _check_rows(path, x, y, rows)
        a, b, factors, ranks, *more = (getattr(layer, name, None) for name in PARTS)
        found: Tensor = torch.ops.kvc.adapted(
            y, x, a, b, factors, ranks, rows, scales, *more
        )
        return found.view(made.shape)

    return adapt


def _check_rows(path: str, x: Tensor, y: Tensor, rows: Tensor) -> None:
    """Check that a layer computes in float32, and for the rows of the batch."""
    fits = x.dtype == y.dtype == torch.float32 and x.dim() == y.dim() >= 2
    first, count = x.shape[0], rows.shape[0]
    both = [type(size) is int for size in (first, count)]  # of others torch checks it
    fits = fits and (first == count if all(both) else not any(both))
    if not fits:
        found = f"{path}, which computes {list(x.shape)} {x.dtype} of {rows.shape[0]}"
        expected = (
            "layers that compute rows of the batch in float32; name those that do, "
            "such as the text decoder's"
        )
        raise wrong_setting("targets", expected, found)


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
