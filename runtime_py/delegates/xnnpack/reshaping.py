"""Find the nodes that reshape a tensor while some of its sizes are unknown.

The library's `static_reshape` can compute one unknown size. If several sizes are
symbolic, dims are grouped so that each group has the same number of elements before and
after the reshape. `fuse_dims` merges a group into one dim, and `split_dim` divides a
dim and can compute one unknown size.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product

from kvc.schema.frozen import frozen
from kvc.schema.types import Affine, Dim, evaluate

Dims = tuple[Dim, ...]
Groups = tuple[tuple[Dims, Dims], ...]


@frozen
class Whole:
    """Reshape the whole tensor; one size can be 0, and the library computes it."""

    sizes: tuple[int, ...]


@frozen
class Fuse:
    """Merge `count` dims, the first of which is `axis`, into one dim."""

    axis: int
    count: int


@frozen
class Split:
    """Divide a dim into several dims; a size can be 0, and the library computes it."""

    axis: int
    sizes: tuple[int, ...]


@frozen
class Insert:
    """Add dims of size 1 at these axes of the result."""

    axes: tuple[int, ...]


Step = Whole | Fuse | Split | Insert


def reshape_steps(before: Dims, after: Dims) -> tuple[Step, ...] | None:
    """Return the steps from a shape to another shape with the same number of elements.

    Returns:
        The steps in order; None if a size of `after` cannot be computed.
    """
    if before == after:
        return ()
    if _unknown(after) <= 1:
        return (Whole(_sizes(after)),)
    groups = tuple(_groups(before, after))
    if any(_unknown(new) > 1 for old, new in groups if old != new):
        return None
    # Fusions first, so that the rank never exceeds that of both shapes.
    return (*_fusions(groups), *_splits(groups))


def apply_step(step: Step, before: Dims, after: Dims, sizes: Mapping[str, int]) -> Dims:
    """Return the shape after one of the steps from `before` to `after`.

    A product of several symbolic dims is not a dim; it is represented by its number for
    `sizes`.
    """
    match step:
        case Whole():
            return after
        case Fuse(axis, count):
            fused = math.prod(evaluate(d, sizes) for d in before[axis : axis + count])
            return (*before[:axis], fused, *before[axis + count :])
        case Split(axis, parts):
            made = after[axis : axis + len(parts)]
            return (*before[:axis], *made, *before[axis + 1 :])
        case Insert(axes):
            dims = list(before)
            for axis in axes:
                dims.insert(axis, 1)
            return tuple(dims)


def _fusions(groups: Groups) -> Iterator[Step]:
    """Yield the steps that merge each group into one dim, if the group changes."""
    axis = 0
    for old, new in groups:
        if not new:
            # Trailing dims of size 1 that vanish are merged into the dim before them.
            yield Fuse(axis - 1, len(old) + 1)
            continue
        changed = old != new and len(old) > 1
        if changed:
            yield Fuse(axis, len(old))
        axis += 1 if changed else len(old)


def _splits(groups: Groups) -> Iterator[Step]:
    """Yield the steps that divide the dim of each changed group into its new dims."""
    axis = 0
    for old, new in groups:
        if not old:
            yield Insert(tuple(range(axis, axis + len(new))))
        elif old != new and len(new) > 1:
            yield Split(axis, _sizes(new))
        axis += len(new)


def _groups(before: Dims, after: Dims) -> Iterator[tuple[Dims, Dims]]:
    """Divide two shapes into groups of dims: each has equal products before and after.

    There are as many groups as possible.
    """
    while before or after:
        i, j = _first_cut(before, after)
        yield before[:i], after[:j]
        before, after = before[i:], after[j:]


def _first_cut(before: Dims, after: Dims) -> tuple[int, int]:
    if not before or not after:
        return len(before), len(after)
    places = product(range(1, len(before) + 1), range(1, len(after) + 1))
    for i, j in sorted(places, key=sum):
        if _product(before[:i]) == _product(after[:j]):
            return i, j
    return len(before), len(after)


def _product(dims: Dims) -> tuple[int, Counter[Affine]]:
    """Return the product of dims as a number, and a count of each symbolic factor.

    The number is as large as possible: no number above 1 divides a symbolic factor.
    """
    number = 1
    factors: Counter[Affine] = Counter()
    for dim in dims:
        if isinstance(dim, int):
            number *= dim
            continue
        content, rest = _content(dim)
        number *= content
        factors.update(rest)
    return number, factors


def _content(dim: Affine) -> tuple[int, tuple[Affine, ...]]:
    """Return the greatest number that divides a dim, and the remaining factors."""
    content = math.gcd(dim.constant, *(c for _, c in dim.parts))
    (factors, coefficient), *others = dim.parts
    if not others and coefficient == content and not dim.constant:
        return content, tuple(Affine(0, ((factor, 1),)) for factor in factors)
    terms = tuple((factor, c // content) for factor, c in dim.terms)
    products = tuple((factors, c // content) for factors, c in dim.products)
    return content, (Affine(dim.constant // content, terms, products),)


def _unknown(dims: Dims) -> int:
    return sum(isinstance(dim, Affine) for dim in dims)


def _sizes(dims: Dims) -> tuple[int, ...]:
    return tuple(0 if isinstance(dim, Affine) else dim for dim in dims)
