"""Shape rules of views: operators whose results share the memory of operand 0."""

import math

from kvc.schema.ops.shapes import Rule, axes_of, axis_of, require, shape_of
from kvc.schema.ops.spec import ShapeMismatch
from kvc.schema.types import TensorType


def view(self: TensorType, size: tuple[int, ...]) -> Rule:
    """View the same elements in another shape; one size may be -1."""
    count = math.prod(shape_of(self))
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        require(
            size.count(-1) == 1 and rest > 0 and count % rest == 0, f"{self} as {size}"
        )
        size = tuple(count // rest if s == -1 else s for s in size)
    fits = min(size, default=0) >= 0 and math.prod(size) == count
    require(fits, "{} as {}", self, size)
    return ((self.dtype, size),)


def transpose(self: TensorType, dim0: int, dim1: int) -> Rule:
    """Swap two axes."""
    shape = list(shape_of(self))
    a, b = axis_of(dim0, len(shape)), axis_of(dim1, len(shape))
    shape[a], shape[b] = shape[b], shape[a]
    return ((self.dtype, tuple(shape)),)


def permute(self: TensorType, dims: tuple[int, ...]) -> Rule:
    """Reorder all axes."""
    shape = shape_of(self)
    axes = [axis_of(dim, len(shape)) for dim in dims]
    require(sorted(axes) == list(range(len(shape))), f"{dims} is not a permutation")
    return ((self.dtype, tuple(shape[axis] for axis in axes)),)


def slice_(
    self: TensorType, dim: int, start: int | None, end: int | None, step: int
) -> Rule:
    """Take a range along an axis; as in Python, ends beyond the axis are clamped."""
    shape = list(shape_of(self))
    axis = axis_of(dim, len(shape))
    require(step > 0, f"step {step}")
    shape[axis] = len(range(*slice(start, end, step).indices(shape[axis])))
    return ((self.dtype, tuple(shape)),)


def select(self: TensorType, dim: int, index: int) -> Rule:
    """Take the slice at one index of an axis, and drop the axis."""
    shape = shape_of(self)
    axis = axis_of(dim, len(shape))
    axis_of(index, shape[axis])
    return ((self.dtype, shape[:axis] + shape[axis + 1 :]),)


def unsqueeze(self: TensorType, dim: int) -> Rule:
    """Add an axis of size 1."""
    shape = shape_of(self)
    axis = axis_of(dim, len(shape) + 1)
    return ((self.dtype, (*shape[:axis], 1, *shape[axis:])),)


def squeeze(self: TensorType, dims: tuple[int, ...]) -> Rule:
    """Drop axes whose size is 1."""
    shape = shape_of(self)
    axes = axes_of(dims, len(shape))
    kept = tuple(s for i, s in enumerate(shape) if i not in axes or s != 1)
    return ((self.dtype, kept),)


def expand(self: TensorType, size: tuple[int, ...]) -> Rule:
    """Repeat axes of size 1 without copying; a size of -1 keeps the axis as it is."""
    shape = shape_of(self)
    extra = len(size) - len(shape)
    require(extra >= 0, f"{self} to {size}")
    result = []
    for i, wanted in enumerate(size):
        have = shape[i - extra] if i >= extra else 1
        require(wanted >= 0 or (wanted == -1 and i >= extra), f"{self} to {size}")
        require(wanted in (-1, have) or have == 1, f"{self} to {size}")
        result.append(have if wanted == -1 else wanted)
    return ((self.dtype, tuple(result)),)


def split(self: TensorType, sizes: tuple[int, ...], dim: int) -> Rule:
    """Split an axis into consecutive parts."""
    shape = shape_of(self)
    axis = axis_of(dim, len(shape))
    if min(sizes, default=-1) < 0 or sum(sizes) != shape[axis]:
        raise ShapeMismatch(f"{self} split into {sizes}")
    return tuple((self.dtype, (*shape[:axis], n, *shape[axis + 1 :])) for n in sizes)
