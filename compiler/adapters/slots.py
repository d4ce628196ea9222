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

from kvc.compiler.request.spec import Dim, Method, StateSpec
from kvc.schema.adapters import A, B, GAIN, OFFSET, PREFIX, RANKS, ROWS, SCALES
from kvc.schema.errors import BadModelSetting

_MOST: Final = 1 << 12  # adapters, and ranks
_TRANSPOSED: Final = "Conv1D"  # transformers' linear layer with a matrix [in, out]


@dataclass(frozen=True, slots=True)
class AdapterSlots:
    """How many adapters a bundle can hold at a time, and of which form.

    Attributes:
        count: the number of adapters.
        rank: the greatest rank of an adapter.
        targets: the layers that adapters can change: the ends of their paths, such as
            "q_proj"; empty for all linear layers but the output layer.
        gains: whether adapters can also multiply the results of layers and add to them,
            as DoRA and trained biases do.
    """

    count: int
    rank: int = 16
    targets: tuple[str, ...] = ()
    gains: bool = False

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            BadModelSetting: a number is not from 1 to 4096, or `targets` is one text.
        """
        for name in ("count", "rank"):
            value: object = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _MOST:
                raise _bad(name, f"a number from 1 to {_MOST}", value)
        targets: object = self.targets
        if isinstance(targets, str) or not all(isinstance(t, str) for t in self.targets):
            raise _bad("targets", "a sequence of names of layers", targets)


def _bad(name: str, expected: str, found: object) -> BadModelSetting:
    return BadModelSetting(
        place="AdapterSlots", setting=name, expected=expected, found=repr(found)
    )


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
    output: nn.Module | None = None,
) -> Iterator[Adaptable]:
    """Give a model slots for adapters, for the time of its compilation.

    Args:
        model: the module whose methods are compiled.
        methods: the methods. The first axis of the inputs of the layers that adapters
            change must be that of the rows of the batch.
        asked: the number and the form of the adapters.
        dtype: the dtype of the adapters' matrices, float32 or float16.
        batch: the number of rows, if a session chooses it; None: one row.
        output: the output layer, which `targets` must name to have slots.

    Raises:
        BadModelSetting: no layer of the model ends in one of the targets.
    """
    layers = _layers(model, asked.targets, output)
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
            for name, tensor in _parts(layer, asked, dtype).items():
                layer.register_buffer(name, tensor, persistent=False)
                added.append((layer, name))
                slots.append(f"{path}.{name}")
            hook = _hook(model, switch)
            hooks.append(layer.register_forward_hook(hook))
        bodies = []
        for method in methods:
            name = f"{PREFIX}{method.name}"
            vars(model)[name] = _adapted(getattr(model, method.name), switch)
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


def _layers(
    model: nn.Module, targets: Sequence[str], output: nn.Module | None
) -> Mapping[str, nn.Module]:
    """Return path -> layer, for the layers that adapters can change.

    Raises:
        BadModelSetting: no layer ends in one of the targets.
    """
    linear = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear) or type(module).__name__ == _TRANSPOSED
    }
    if not targets:
        return {path: one for path, one in linear.items() if one is not output}
    for target in targets:
        if not any(_ends_in(path, target) for path in linear):
            ends = sorted({path.rpartition(".")[2] for path in linear})
            known = f"the end of a linear layer's path: {', '.join(ends)}"
            raise _bad("targets", known, target)
    return {
        path: one
        for path, one in linear.items()
        if any(_ends_in(path, target) for target in targets)
    }


def _ends_in(path: str, target: str) -> bool:
    return path == target or path.endswith(f".{target}")


def _parts(
    layer: nn.Module, asked: AdapterSlots, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the buffers of a layer by name: zeros, which take no memory."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    results, inputs = weight.shape
    if type(layer).__name__ == _TRANSPOSED:
        results, inputs = inputs, results
    count = asked.count + 1
    parts = {
        A: torch.zeros(count, asked.rank, inputs, dtype=dtype),
        B: torch.zeros(count, asked.rank, results, dtype=dtype),
        RANKS: torch.zeros(count, dtype=torch.int64),
    }
    if asked.gains:
        parts |= {name: torch.zeros(count, results) for name in (GAIN, OFFSET)}
    return parts


def _hook(
    model: nn.Module, switch: _Switch
) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
    """Return a hook that adapts the result of a layer, if the switch is on."""

    def adapt(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor | None:
        if not switch.on:
            return None
        x, y = given[0], made
        rows, scales = model.get_buffer(ROWS), model.get_buffer(SCALES)
        if x.dim() == 2:  # rows after rows
            x, y = (each.view(rows.shape[0], -1, each.shape[-1]) for each in (x, y))
        parts = (getattr(layer, name) for name in (A, B, RANKS))
        more = (getattr(layer, name, None) for name in (GAIN, OFFSET))
        found: Tensor = torch.ops.kvc.adapted(y, x, *parts, rows, scales, *more)
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
