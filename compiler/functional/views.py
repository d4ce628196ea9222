"""Views as paths, and writes through them.

A path leads from the tensor that made a memory to another tensor in that memory: views
one after the other. A `Box` is a stretch of a path that selects along axes and orders
them anew; it is written at once. The other views are written one by one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import SymInt, Tensor
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
Size = int | SymInt


class Unwritable(Exception):
    """A tensor cannot be written; the message gives the reason and a remedy.

    Attributes:
        meta: the metadata of the traced node that writes, empty if it is not known.
    """

    def __init__(self, reason: str, meta: dict[str, object] | None = None) -> None:
        super().__init__(reason)
        self.meta = meta or {}


@dataclass(frozen=True, slots=True)
class View:
    """A call whose result lies in the memory of its first argument.

    Attributes:
        op: the operator.
        args: its arguments after the first one.
        source: the tensor that it views.
        result: the tensor that it returns.
    """

    op: OpOverload
    args: tuple[object, ...]
    source: Tensor
    result: Tensor

    def is_like(self, other: "View") -> bool:
        """Tell whether another view selects the same of a tensor."""
        one, two = (tuple(map(_written, tree_leaves(v.args))) for v in (self, other))
        return self.op is other.op and one == two


def _written(argument: object) -> object:
    return argument.node.expr if isinstance(argument, SymInt) else argument


@dataclass(slots=True)
class _Axis:
    """An axis of a view.

    Attributes:
        along: the axis of the box's base that it runs along; None if it has one place,
            or repeats one.
        is_wide: whether it repeats its one place, as `expand` does.
    """

    along: int | None
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """Places of an axis: `start`, `start + step`, ..., `count` of them."""

    start: Size
    count: Size
    step: int

    @property
    def end(self) -> Size:
        """A place after the last one."""
        return self.start + self.count * self.step


@dataclass(frozen=True, slots=True)
class Single:
    """One place of an axis, which the view lacks."""

    place: Size


@dataclass(frozen=True, slots=True)
class Picked:
    """Places of an axis that a tensor of integers [count] holds.

    Attributes:
        places: the tensor.
        count: the number of places.
        from_back: whether negative places count from the back of the axis; else they
            are an error.
    """

    places: Tensor
    count: Size
    from_back: bool


Selected = Range | Single | Picked


@dataclass(slots=True)
class Box:
    """Places along axes of a base, in any order of axes.

    Attributes:
        sizes: of the base.
        axes: of the part, in its order.
        selected: axis of the base -> its places; axes that are whole are missing.
    """

    sizes: Sequence[Size]
    axes: list[_Axis] = field(default_factory=list)
    selected: dict[int, Selected] = field(default_factory=dict)

    @classmethod
    def whole(cls, base: Tensor) -> "Box":
        """Return the box of all places of a tensor."""
        return cls(base.shape, [_Axis(axis) for axis in range(base.dim())])

    def add(self, view: View) -> bool:
        """Narrow the box by a view; False, with no change, if that is no box."""
        rule = _NARROWED.get(view.op)
        return rule is not None and rule(self, view)

    def pick(self, dim: int, picked: Picked) -> bool:
        """Narrow an axis of the part to the places in a tensor."""
        along = self.axes[dim].along
        if along is None or along in self.selected:
            return False
        self.selected[along] = picked
        return True

    def repeats(self) -> bool:
        """Tell whether the part repeats places."""
        return any(axis.is_wide for axis in self.axes)

    def order(self) -> list[int]:
        """Return the axes of the part that are the base's, in the base's order."""
        kept = [(a.along, i) for i, a in enumerate(self.axes) if a.along is not None]
        return [i for _, i in sorted(kept)]

    def counts(self) -> list[Size]:
        """Return the number of places along each axis of the base."""
        return [
            size if axis not in self.selected else _count(self.selected[axis])
            for axis, size in enumerate(self.sizes)
        ]


def _count(selected: Selected) -> Size:
    return 1 if isinstance(selected, Single) else selected.count


def may_be_one(size: Size) -> bool:
    """Tell whether a size is 1 for some values of its symbols."""
    return not isinstance(size, int) or size == 1


def equal(one: Size, other: Size) -> bool:
    """Tell whether two sizes are equal for all values of their symbols."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return statically_known_true(one == other)


def _permute(box: Box, view: View) -> bool:
    (dims,) = view.args
    assert isinstance(dims, Sequence)
    box.axes = [box.axes[dim] for dim in dims]
    return True


def _transpose(box: Box, view: View) -> bool:
    if not box.axes:
        return True
    one, other = view.args
    assert isinstance(one, int)
    assert isinstance(other, int)
    box.axes[one], box.axes[other] = box.axes[other], box.axes[one]
    return True


def _t(box: Box, view: View) -> bool:
    box.axes = box.axes[::-1]
    return True


def _unsqueeze(box: Box, view: View) -> bool:
    (dim,) = view.args
    assert isinstance(dim, int)
    box.axes.insert(dim % view.result.dim(), _Axis(None))
    return True


def _reshaped(box: Box, view: View) -> bool:
    """Follow a view that adds or drops axes of size 1 only; also `squeeze`."""
    old, new = view.source.shape, view.result.shape
    left = [i for i, size in enumerate(old) if not equal(size, 1)]
    kept = [size for size in new if not equal(size, 1)]
    if len(left) != len(kept):
        return False
    if not all(equal(old[i], n) for i, n in zip(left, kept, strict=True)):
        return False
    following = iter(left)
    box.axes = [
        _Axis(None) if equal(size, 1) else box.axes[next(following)] for size in new
    ]
    return True


def _same(box: Box, view: View) -> bool:
    return True


def _select(box: Box, view: View) -> bool:
    dim, place = view.args
    assert isinstance(dim, int)
    dim %= view.source.dim()
    along = box.axes[dim].along
    if along is not None and not equal(view.source.shape[dim], 1):
        known = box.selected.get(along)
        if known is not None:
            start = _from_front(place, view.source.shape[dim])
            if not isinstance(known, Range) or start is None:
                return False
            place = known.start + start * known.step
        box.selected[along] = Single(place)  # type: ignore[arg-type]  # a size
    del box.axes[dim]
    return True


def _from_front(place: object, size: Size) -> Size | None:
    """Return a place of an axis counted from the front, None if its sign is unknown."""
    assert isinstance(place, int | SymInt)
    if isinstance(place, int):
        return place if place >= 0 else place + size
    if statically_known_true(place >= 0):
        return place
    return place + size if statically_known_true(place < 0) else None


def _slice(box: Box, view: View) -> bool:
    dim, start, _, step = view.args
    assert isinstance(dim, int)
    assert isinstance(step, int)
    dim %= view.source.dim()
    size, count = view.source.shape[dim], view.result.shape[dim]
    along = box.axes[dim].along
    if box.axes[dim].is_wide:
        box.axes[dim] = _Axis(None, is_wide=not equal(count, 1))
        return True
    if along is None or (step == 1 and equal(size, count)):
        return equal(size, count)
    first = 0 if start is None else _from_front(start, size)
    if first is None:
        return False
    if isinstance(first, int):
        first = max(first, 0)
    known = box.selected.get(along, Range(0, size, 1))
    if not isinstance(known, Range):
        return False
    box.selected[along] = Range(
        known.start + first * known.step, count, known.step * step
    )
    return True


def _expand(box: Box, view: View) -> bool:
    """Follow an `expand`, which adds axes and repeats places."""
    old, new = view.source.shape, view.result.shape
    added = len(new) - len(old)
    axes = [*(_Axis(None) for _ in range(added)), *box.axes]
    sizes = [*(1 for _ in range(added)), *old]
    for axis, (size, wide) in enumerate(zip(sizes, new, strict=True)):
        if not equal(size, wide):
            axes[axis] = _Axis(None, is_wide=True)
    box.axes = axes
    return True


_NARROWED: dict[OpOverload, Callable[[Box, View], bool]] = {
    _aten.alias.default: _same,
    _aten.detach.default: _same,
    _aten.lift_fresh.default: _same,
    _aten.expand.default: _expand,
    _aten.permute.default: _permute,
    _aten.select.int: _select,
    _aten.slice.Tensor: _slice,
    _aten.squeeze.default: _reshaped,
    _aten.squeeze.dim: _reshaped,
    _aten.squeeze.dims: _reshaped,
    _aten.t.default: _t,
    _aten.transpose.int: _transpose,
    _aten.unsqueeze.default: _unsqueeze,
    _aten.view.default: _reshaped,
    _aten._reshape_alias.default: _reshaped,
}


def parts_of(
    op: OpOverload, args: tuple[object, ...], source: Tensor, results: Sequence[Tensor]
) -> list[View]:
    """Return each result of a view with several results as a view with one."""
    if op is _aten.unbind.int:
        (dim,) = args
        return [
            View(_aten.select.int, (dim, index), source, result)
            for index, result in enumerate(results)
        ]
    _, dim = args
    assert isinstance(dim, int)
    found, start = list[View](), 0
    for result in results:
        end = start + result.shape[dim]
        found.append(View(_aten.slice.Tensor, (dim, start, end, 1), source, result))
        start = end
    return found
