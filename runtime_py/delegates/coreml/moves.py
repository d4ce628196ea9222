"""Operators that move or create elements, as calls of MIL.

In: a `Step`, and the operator's arguments with fixed sizes. Out: the result. A view of
kvc becomes a copy in MIL, and Core ML can remove such copies.
"""

import numpy as np

from kvc.runtime.delegates.coreml.mil import NotTaken, Step, Tensor
from kvc.runtime.memory.arrays import Array


def fit(step: Step, x: Tensor) -> Tensor:
    """Reshape a result to its declared shape."""
    return step.emitter.reshape(x, step.shape)


def reshape(step: Step, x: object, *_: object) -> Tensor:
    """Return the same elements in the result's shape."""
    return step.emitter.reshape(step.read(x, step.dtype), step.shape)


def copy(step: Step, _: object, x: object) -> Tensor:
    """Return `x`, the source of a copy that overwrites the whole of another tensor."""
    return reshape(step, x)


def transpose(step: Step, x: object, one: object, other: object) -> Tensor:
    """Swap two axes."""
    assert isinstance(one, int)
    assert isinstance(other, int)
    order = list(range(len(step.shape)))
    order[one], order[other] = order[other], order[one]
    return step.emitter.transpose(step.read(x, step.dtype), order)


def permute(step: Step, x: object, order: object) -> Tensor:
    """Put a tensor's axes in another order."""
    assert isinstance(order, tuple)
    axes = [axis % len(step.shape) for axis in order] or [0]
    return step.emitter.transpose(step.read(x, step.dtype), axes)


def slice_(step: Step, x: object, axis: object, *bounds: object) -> Tensor:
    """Take a part of an axis, perhaps with steps."""
    assert isinstance(axis, int)
    held = step.read(x, step.dtype)
    along = axis % len(held.shape)
    start, end, by = (each if isinstance(each, int) else None for each in bounds)
    return step.emitter.part(held, along, range(held.shape[along])[start:end:by])


def select(step: Step, x: object, axis: object, index: object) -> Tensor:
    """Take the elements at one index of an axis, and remove the axis."""
    assert isinstance(axis, int)
    assert isinstance(index, int)
    held = step.read(x, step.dtype)
    along = axis % len(held.shape)
    at = index % held.shape[along]
    return fit(step, step.emitter.part(held, along, range(at, at + 1)))


def split(step: Step, x: object, sizes: object, axis: object) -> list[Tensor]:
    """Cut an axis into parts."""
    assert isinstance(sizes, tuple)
    assert isinstance(axis, int)
    held, start, made = step.read(x, step.dtype), 0, list[Tensor]()
    for size in sizes:
        span = range(start, start + size)
        made.append(step.emitter.part(held, axis % len(held.shape), span))
        start += size
    return made


def expand(step: Step, x: object, *_: object) -> Tensor:
    """Repeat a tensor along axes of size 1, to the result's shape."""
    return step.emitter.spread(step.read(x, step.dtype), step.shape)


def repeat(step: Step, x: object, times: object) -> Tensor:
    """Repeat a tensor along each axis, by the axis's entry in `times`."""
    assert isinstance(times, tuple)
    held = step.read(x, step.dtype)
    wide = step.emitter.reshape(
        held, (*(1,) * (len(times) - len(held.shape)), *held.shape)
    )
    return step.emitter.call("tile", step.dtype, step.shape, x=wide, reps=times or (1,))


def cat(step: Step, tensors: object, axis: object) -> Tensor:
    """Concatenate tensors along an axis."""
    assert isinstance(tensors, tuple)
    assert isinstance(axis, int)
    parts = [step.read(each, step.dtype) for each in tensors]
    return step.emitter.concat(parts, axis % len(step.shape))


def stack(step: Step, tensors: object, axis: object) -> Tensor:
    """Stack tensors along a new axis."""
    assert isinstance(tensors, tuple)
    assert isinstance(axis, int)
    along = axis % len(step.shape)
    one = [1 if a == along else n for a, n in enumerate(step.shape)]
    parts = [step.emitter.reshape(step.read(e, step.dtype), one) for e in tensors]
    return step.emitter.concat(parts, along)


def full(step: Step, _: object, value: object, *__: object) -> Tensor:
    """Return a tensor in which all elements are `value`."""
    assert isinstance(value, int | float)
    return _numbers(step, np.full(step.shape, value))


def arange(step: Step, *numbers: object) -> Tensor:
    """Return the numbers from a start, each greater than the last by a step."""
    start, _, by, _ = numbers
    assert isinstance(start, int | float)
    assert isinstance(by, int | float)
    return _numbers(step, start + by * np.arange(*step.shape))


def _numbers(step: Step, array: Array) -> Tensor:
    """Return an array as a constant.

    Raises:
        NotTaken: an integer needs more than 32 bits.
    """
    if step.dtype == "int32" and array.size:
        for found in (int(array.min()), int(array.max())):
            if not -(2**31) <= found < 2**31:
                raise NotTaken(f"{found} has more than 32 bits")
    return step.emitter.numbers(array, step.dtype)
