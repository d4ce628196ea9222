"""The new value of a memory of which a part is written.

In: a path into a memory, and the new content of the part. Out: the new value of the
whole memory. A box (`views`) is written by one operator for each axis that it selects
from; other views are undone one by one.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true

from kvc.compiler.functional.contents import Contents
from kvc.compiler.functional.memory import Place, steps_of
from kvc.compiler.functional.views import (
    Box,
    Picked,
    Range,
    Selected,
    Single,
    Unwritable,
    View,
)

_aten = torch.ops.aten
Undone = Callable[[Contents, Place, View, Tensor], Tensor]
REPEATED = (
    "it writes through a tensor that repeats elements, as expand returns; write into "
    "the tensor itself, before it is expanded"
)


def through(
    contents: Contents, path: Sequence[Place], new: Tensor, uniform: bool = False
) -> Tensor:
    """Return the content of a whole memory, whose part at the end of a path is new.

    Args:
        contents: what tensors contain.
        path: the places from the tensor that made the memory to the part.
        new: the new content of the part.
        uniform: whether all elements of `new` are equal.

    Raises:
        Unwritable: the path reaches elements several times, or cannot be undone.
    """
    steps = steps_of(path)
    for base, step in reversed(steps):
        if isinstance(step, Box):
            if step.repeats() and not (uniform and step is steps[-1][1]):
                raise Unwritable(REPEATED)
            new = write_box(contents, base, step, new)
        else:
            new = _undo(contents, base, step, new)
    return new


def write_box(contents: Contents, base: Place, box: Box, new: Tensor) -> Tensor:
    """Write a box, one selected axis after the other, in the order of the path."""
    order, chosen = box.order(), box.selected
    with contents:
        for dim, each in enumerate(box.axes):
            if each.is_wide:  # what is repeated is the same
                new = new.narrow(dim, 0, 1)
        if order != sorted(order):
            rest = [dim for dim in range(new.dim()) if dim not in order]
            new = new.permute([*order, *rest])
    singles = {i for i, each in chosen.items() if isinstance(each, Single)}
    counts = [n for i, n in enumerate(box.counts()) if i not in singles]
    new = contents.shaped(new, counts)
    steps: list[tuple[Tensor, int, Selected]] = []
    part, axes = contents.snapshot(base), list(range(len(box.sizes)))
    for axis, selected in chosen.items():
        at = axes.index(axis)
        steps.append((part, at, selected))
        if axis in singles:
            axes.remove(axis)
        if len(steps) < len(chosen):
            part = _read_axis(contents, part, at, selected)
    for part, at, selected in reversed(steps):
        new = _write_axis(contents, part, at, selected, new)
    return new


def _read_axis(contents: Contents, x: Tensor, axis: int, selected: Selected) -> Tensor:
    with contents:
        if isinstance(selected, Single):
            return x.select(axis, selected.place)
        assert isinstance(selected, Range)
        ends = selected.start, selected.end
        made: Tensor = _aten.slice.Tensor(x, axis, *ends, selected.step)
        return made


def _write_axis(
    contents: Contents, x: Tensor, axis: int, selected: Selected, new: Tensor
) -> Tensor:
    whole = contents.whole
    match selected:
        case Single(place):
            return whole(_aten.select_scatter.default, x, new, axis, place)
        case Range(start, _, step):
            ends = start, selected.end
            return whole(_aten.slice_scatter.default, x, new, axis, *ends, step)
        case Picked(places, _, True):
            return whole(_aten.index_put.default, x, [*[None] * axis, places], new)
        case Picked(places):
            return whole(_aten.index_copy.default, x, axis, places, new)


# Undo a single view.


def _undo(contents: Contents, base: Place, view: View, new: Tensor) -> Tensor:
    rule = _UNDONE.get(view.op)
    if rule is None:
        name = view.op._schema.name.removeprefix("aten::")
        raise Unwritable(f"it writes through {name}, which kvc cannot; write a clone")
    return rule(contents, base, view, new)


def _reshaped(contents: Contents, base: Place, view: View, new: Tensor) -> Tensor:
    return contents.shaped(new, view.source.shape)


def _other_dtype(contents: Contents, base: Place, view: View, new: Tensor) -> Tensor:
    return contents.whole(_aten.view.dtype, new, view.source.dtype)


def _joined(contents: Contents, base: Place, view: View, new: Tensor) -> Tensor:
    with contents:
        return torch.view_as_complex(new)


def _taken_apart(contents: Contents, base: Place, view: View, new: Tensor) -> Tensor:
    with contents:
        return torch.view_as_real(new)


def _scattered(op: OpOverload) -> Undone:
    """Return the rule for a view whose part `op` writes into a whole."""

    def rule(contents: Contents, base: Place, view: View, new: Tensor) -> Tensor:
        whole = contents.snapshot(base)
        with contents:
            made: Tensor = op(whole, new, *view.args)
        return made

    return rule


def _written(op: OpOverload) -> Undone:
    """Return the rule for a part that counts from the front or from the back."""

    def rule(contents: Contents, base: Place, view: View, new: Tensor) -> Tensor:
        return contents.whole(op, contents.snapshot(base), new, *view.args)

    return rule


def _windowed(contents: Contents, base: Place, view: View, new: Tensor) -> Tensor:
    """Write windows of an axis that do not overlap."""
    dim, size, step = view.args
    assert isinstance(dim, int)
    assert isinstance(size, int)
    assert isinstance(step, int)
    dim %= view.source.dim()
    count = view.result.shape[dim]
    if step < size and not statically_known_true(count <= 1):
        raise Unwritable(
            f"it writes into windows of unfold({dim}, {size}, {step}), which overlap; "
            f"write each window through .narrow({dim}, start, {size})"
        )
    whole = contents.snapshot(base)
    with contents:
        starts = torch.arange(count) * step
        places = (starts.unsqueeze(1) + torch.arange(size)).reshape(-1)
        rows = new.movedim(-1, dim + 1).flatten(dim, dim + 1)
        return whole.index_copy(dim, places, rows)


_UNDONE: dict[OpOverload, Undone] = {
    _aten.view.default: _reshaped,
    _aten._reshape_alias.default: _reshaped,
    _aten.view.dtype: _other_dtype,
    _aten.view_as_real.default: _joined,
    _aten.view_as_complex.default: _taken_apart,
    _aten.as_strided.default: _scattered(_aten.as_strided_scatter.default),
    _aten.diagonal.default: _scattered(_aten.diagonal_scatter.default),
    _aten.unfold.default: _windowed,
    _aten.slice.Tensor: _written(_aten.slice_scatter.default),
    _aten.select.int: _written(_aten.select_scatter.default),
}
