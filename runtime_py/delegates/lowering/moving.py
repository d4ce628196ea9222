"""Operators that create, concatenate and move elements; views become copies.

The functions have the parameters and results that `operators.py` describes.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from kvc.runtime.delegates.lowering.builder import check_fits
from kvc.runtime.delegates.lowering.context import Emit, Made, OpContext


def _cat(line: OpContext, tensors: Sequence[object], axis: int) -> Made:
    names = [line.computed(each) for each in tensors]
    kept = [n for n in names if 0 not in line.build.shape(n)] or names[:1]
    return line.build.concat(kept, axis % len(line.shape))


def _stack(line: OpContext, tensors: Sequence[object], axis: int) -> Made:
    along = axis % len(line.shape)
    one = tuple(1 if n == along else size for n, size in enumerate(line.shape))
    parts = [line.build.reshape(line.computed(each), one) for each in tensors]
    return line.build.concat(parts, along)


def _repeat(line: OpContext, x: object, times: Sequence[int]) -> Made:
    build, name = line.build, line.get(x)
    if 0 in line.shape:
        return build.broadcast(build.number(0, build.dtype(name)), line.shape)
    name = build.reshape(
        name, (*(1,) * (len(times) - len(build.shape(name))), *build.shape(name))
    )
    for axis, count in enumerate(times):
        name = build.concat([name] * count, axis)
    return name


def _full(line: OpContext, size: object, value: float, *_: object) -> Made:
    number = line.build.number(value, line.dtypes[0])
    return line.build.broadcast(number, line.shape or (1,))


def _arange(
    line: OpContext, start: float, end: object, step: float, *_: object
) -> Made:
    numbers = start + step * np.arange(line.shape[0])
    for number in numbers[[0, -1]] if numbers.size else ():
        check_fits(int(number), line.dtypes[0])
    return line.build.constant(numbers.astype(line.dtypes[0]))


def _copy(line: OpContext, x: object, source: object) -> Made:
    """Return the content of `x` after `source` has been copied into `x`."""
    made = line.build.cast(line.get(source), line.build.dtype(line.get(x)))
    return line.build.broadcast(made, line.shape)


def _reshape(line: OpContext, x: object, *_: object) -> Made:
    return line.build.reshape(line.get(x), line.shape)


def _transpose(line: OpContext, x: object, one: int, other: int) -> Made:
    if not line.shape:
        return line.get(x)
    order = list(range(len(line.shape)))
    order[one], order[other] = order[other], order[one]
    return line.build.transpose(line.get(x), tuple(order))


def _permute(line: OpContext, x: object, order: Sequence[int]) -> Made:
    rank = len(line.shape)
    return line.build.transpose(line.get(x), tuple(axis % rank for axis in order))


def _slice(line: OpContext, x: object, axis: int, *bounds: object) -> Made:
    name = line.get(x)
    shape = line.build.shape(name)
    along = axis % len(shape)
    start, end, by = (each if isinstance(each, int) else None for each in bounds)
    return line.build.part(name, along, range(shape[along])[start:end:by])


def _select(line: OpContext, x: object, axis: int, index: int) -> Made:
    name = line.get(x)
    shape = line.build.shape(name)
    along = axis % len(shape)
    at = index % shape[along]
    one = line.build.part(name, along, range(at, at + 1))
    return line.build.reshape(one, line.shape)


def _split(line: OpContext, x: object, sizes: Sequence[int], axis: int) -> Made:
    name = line.get(x)
    along, start, made = axis % len(line.build.shape(name)), 0, []
    for size in sizes:
        made.append(line.build.part(name, along, range(start, start + size)))
        start += size
    return made


def _expand(line: OpContext, x: object, *_: object) -> Made:
    return line.build.broadcast(line.get(x), line.shape)


MOVING: Final[Mapping[str, Emit]] = {
    "aten::cat": _cat,
    "aten::stack": _stack,
    "aten::repeat": _repeat,
    "aten::full": _full,
    "aten::arange.start_step": _arange,
    "aten::copy": _copy,
    **{f"aten::{op}": _reshape for op in ("clone", "reshape", "alias", "view")},
    **{f"aten::{op}": _reshape for op in ("unsqueeze", "squeeze.dims")},
    "aten::transpose.int": _transpose,
    "aten::permute": _permute,
    "aten::slice.Tensor": _slice,
    "aten::select.int": _select,
    "aten::split_with_sizes": _split,
    "aten::expand": _expand,
}
