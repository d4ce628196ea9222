"""Operators that create, concatenate and move elements; views become copies.

The functions have the parameters and results that `operators.py` describes.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from kvc.runtime.delegates.coreai.emitting import Line, Made


def _cat(line: Line, tensors: object, axis: object) -> Made:
    assert isinstance(tensors, tuple)
    assert isinstance(axis, int)
    return line.emitter.concat([*map(line.get, tensors)], axis % len(line.shape))


def _full(line: Line, size: object, value: object, dtype: object) -> Made:
    assert isinstance(value, int | float)
    number = line.emitter.number(value, line.dtypes[0])
    return line.emitter.broadcast(number, line.shape)


def _arange(
    line: Line, start: object, end: object, step: object, dtype: object
) -> Made:
    assert isinstance(start, int | float)
    assert isinstance(step, int | float)
    numbers = start + step * np.arange(line.shape[0])
    return line.emitter.constant(numbers.astype(line.dtypes[0]))


def _copy(line: Line, x: object, source: object) -> Made:
    """Return `source` in the shape and dtype of `x`, as a copy into `x` gives it."""
    made = line.emitter.cast(line.get(source), line.emitter.dtype(line.get(x)))
    return line.emitter.broadcast(made, line.shape)


def _reshape(line: Line, x: object, *_: object) -> Made:
    return line.emitter.reshape(line.get(x), line.shape)


def _transpose(line: Line, x: object, one: object, other: object) -> Made:
    assert isinstance(one, int)
    assert isinstance(other, int)
    order = list(range(len(line.shape)))
    order[one], order[other] = order[other], order[one]
    return line.emitter.transpose(line.get(x), tuple(order))


def _permute(line: Line, x: object, order: object) -> Made:
    assert isinstance(order, tuple)
    rank = len(line.shape)
    return line.emitter.transpose(line.get(x), tuple(axis % rank for axis in order))


def _slice(
    line: Line, x: object, axis: object, start: object, end: object, by: object
) -> Made:
    assert isinstance(axis, int)
    assert isinstance(by, int)
    name = line.get(x)
    shape = line.emitter.shape(name)
    along = axis % len(shape)
    span = range(shape[along])[_bound(start) : _bound(end) : by]
    return line.emitter.part(name, along, span)


def _bound(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _select(line: Line, x: object, axis: object, index: object) -> Made:
    assert isinstance(axis, int)
    assert isinstance(index, int)
    name = line.get(x)
    shape = line.emitter.shape(name)
    along = axis % len(shape)
    at = index % shape[along]
    one = line.emitter.part(name, along, range(at, at + 1))
    return line.emitter.reshape(one, line.shape)


def _split(line: Line, x: object, sizes: object, axis: object) -> Made:
    assert isinstance(sizes, tuple)
    assert isinstance(axis, int)
    name = line.get(x)
    along, start, made = axis % len(line.emitter.shape(name)), 0, []
    for size in sizes:
        made.append(line.emitter.part(name, along, range(start, start + size)))
        start += size
    return made


def _expand(line: Line, x: object, shape: object) -> Made:
    return line.emitter.broadcast(line.get(x), line.shape)


MOVING: Final[Mapping[str, Callable[..., Made]]] = {
    "aten::cat": _cat,
    "aten::full": _full,
    "aten::arange.start_step": _arange,
    "aten::copy": _copy,
    "aten::clone": _reshape,
    "aten::reshape": _reshape,
    "aten::alias": _reshape,
    "aten::view": _reshape,
    "aten::unsqueeze": _reshape,
    "aten::squeeze.dims": _reshape,
    "aten::transpose.int": _transpose,
    "aten::permute": _permute,
    "aten::slice.Tensor": _slice,
    "aten::select.int": _select,
    "aten::split_with_sizes": _split,
    "aten::expand": _expand,
}
