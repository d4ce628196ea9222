"""Lowered functions that numpy computes: a device that has all primitives.

By it, a fault of a vendor's part can be told from a fault of the lowering. Dtypes and
shapes are exactly those that a function says.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy_operators import ONE, TWO, gelu, softmax

from kvc.runtime.delegates.lowering.function import Function, Weight

Arrays = Mapping[str, np.ndarray]


def compute(
    function: Function, given: Arrays, read: Callable[[Weight], np.ndarray]
) -> dict[str, np.ndarray]:
    """Return all tensors of a function, given its inputs and states."""
    found = {name: array.copy() for name, array in given.items()}
    found |= function.constants
    found |= {weight.name: read(weight) for weight in function.weights}
    with np.errstate(all="ignore"):
        for each in function.operations:
            kind = function.tensors[each.output]
            inputs = (found[name] for name in each.inputs)
            made = OPERATIONS[each.op](*inputs, shape=kind.shape, **each.facts)
            if each.op != "cast":
                assert made.dtype == np.dtype(kind.dtype), (each, made.dtype, kind)
            assert made.shape == kind.shape, (each, made.shape, kind)
            found[each.output] = made.astype(kind.dtype)
    return found


def _slice(x: np.ndarray, shape, axis, start, end, by) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(start, end, by),)]


def _write(x: np.ndarray, update, at, shape, axis) -> np.ndarray:
    first, made = int(at[0]), x.copy()
    assert 0 <= first <= x.shape[axis] - update.shape[axis]
    span = slice(first, first + update.shape[axis])
    made[(slice(None),) * axis + (span,)] = update
    return made


def _rows(table: np.ndarray, index: np.ndarray, shape: object) -> np.ndarray:
    assert 0 <= index.min() <= index.max() < len(table)
    return table[index]


def _plain(function: Callable) -> Callable:
    return lambda *arrays, shape: function(*arrays)


def _reduced(function: Callable) -> Callable:
    return lambda x, shape, axes: function(x, axis=tuple(axes), keepdims=True).astype(
        x.dtype
    )


OPERATIONS: Mapping[str, Callable] = {
    **{name: _plain(function) for name, function in (ONE | TWO).items()},
    "where": _plain(np.where),
    "modulo": _plain(np.fmod),
    "gelu": lambda x, shape, approximate: gelu(x, approximate != "none"),
    "softmax": lambda x, shape, axis: softmax(x, axis),
    "cast": lambda x, shape: x,
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, shape, order: x.transpose(order),
    "slice": _slice,
    "broadcast": lambda x, shape: np.broadcast_to(x, shape),
    "concat": lambda *parts, shape, axis: np.concatenate(parts, axis),
    "rows": _rows,
    "along": lambda x, index, shape, axis: np.take_along_axis(x, index, axis),
    "write": _write,
    "sum": _reduced(np.sum),
    "mean": _reduced(np.mean),
    "max": _reduced(np.max),
    "min": _reduced(np.min),
}
