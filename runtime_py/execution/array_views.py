"""Run a program's view operators on numpy arrays.

The result of a view operator shares the memory of the operand.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kvc.runtime.execution.values import Values
from kvc.runtime.memory.arrays import Array, address_of
from kvc.schema.graph import Instruction

View = Callable[..., Array | Sequence[Array]]


def _alias(x: Array) -> Array:
    return x


def _view(x: Array, shape: tuple[int, ...]) -> Array:
    made = x.reshape(shape)
    if made.size and address_of(made) != address_of(x):
        raise ValueError(f"strides {x.strides} of {x.shape} allow no view {shape}")
    return made


def _transpose(x: Array, one: int, other: int) -> Array:
    return x.swapaxes(one, other) if x.ndim else x


def _slice(x: Array, axis: int, start: int | None, end: int | None, step: int) -> Array:
    return x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]


def _select(x: Array, axis: int, index: int) -> Array:
    # The ellipsis makes the result an array even if it has no axes.
    return x[((slice(None),) * (axis % x.ndim) + (index, ...))]


def _squeeze(x: Array, axes: tuple[int, ...]) -> Array:
    gone = {axis % max(1, x.ndim) for axis in axes}
    kept = [n for i, n in enumerate(x.shape) if n != 1 or i not in gone]
    return _view(x, tuple(kept))


def _expand(x: Array, shape: tuple[int, ...]) -> Array:
    before = len(shape) - x.ndim
    sizes = [
        x.shape[i - before] if size == -1 else size for i, size in enumerate(shape)
    ]
    return np.broadcast_to(x, sizes)


def _split(x: Array, sizes: tuple[int, ...], axis: int) -> Sequence[Array]:
    ends = np.cumsum(sizes)
    return [
        _slice(x, axis, int(end) - size, int(end), 1)
        for end, size in zip(ends, sizes, strict=True)
    ]


_VIEWS: dict[str, View] = {
    "aten::alias": _alias,
    "aten::expand": _expand,
    "aten::permute": np.transpose,
    "aten::select.int": _select,
    "aten::slice.Tensor": _slice,
    "aten::split_with_sizes": _split,
    "aten::squeeze.dims": _squeeze,
    "aten::transpose.int": _transpose,
    "aten::unsqueeze": np.expand_dims,
    "aten::view": _view,
}


def bind_view(instruction: Instruction, values: Values) -> None:
    """Define the results of a view operator; its operand is defined already.

    Raises:
        ValueError: as `view_arrays`.
    """
    arguments = [values.argument(each, values.array) for each in instruction.arguments]
    shapes = [values.shape(value) for value in instruction.results]
    views = view_arrays(instruction.op, arguments, shapes)
    for value, array in zip(instruction.results, views, strict=True):
        values.place(value, array)


def view_arrays(
    op: str, arguments: Sequence[object], shapes: Sequence[tuple[int, ...]]
) -> Sequence[Array]:
    """Return the views that a view operator makes of an array.

    Args:
        op: the name of the view operator.
        arguments: the operator's arguments in the order of its signature, the array
            first.
        shapes: the declared shapes of the results.

    Raises:
        ValueError: the array's strides do not allow the view, or the view's shape
            differs from the declared shape.
    """
    made = _VIEWS[op](*arguments)
    views = [made] if isinstance(made, np.ndarray) else made
    for view, shape in zip(views, shapes, strict=True):
        if view.shape != shape:
            raise ValueError(f"the view is {view.shape}, not {shape}")
    return views
