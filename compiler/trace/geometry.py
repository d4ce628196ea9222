"""Express a tensor that lies in the memory of another tensor as a chain of views.

In: the layouts of two tensors of one memory. Out: `Views`, which select, slice, split,
merge, permute and expand axes of the larger tensor, and apply in the same way to any
tensor that replaces it; or None if no chain of views gives the smaller tensor. The
views are found by arithmetic alone, since operators on the tensors would become part of
the trace.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

View = tuple[str, tuple[object, ...]]  # an aten view and its arguments
Views = tuple[View, ...]


@dataclass(frozen=True, slots=True)
class StridedLayout:
    """The position and strides of the elements of a tensor.

    Attributes:
        begin: address of the first element, in bytes.
        kind: dtype, and whether elements are read as complex conjugates.
        itemsize: bytes of an element.
        shape: sizes.
        stride: strides, in elements.
    """

    begin: int
    kind: tuple[torch.dtype, bool]
    itemsize: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "StridedLayout":
        """Return the layout of a tensor that has an address."""
        kind = (tensor.dtype, tensor.is_conj())
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return cls(tensor.data_ptr(), kind, tensor.itemsize, shape, stride)

    def select(self, axis: int, place: int) -> "StridedLayout":
        """Return the layout of the elements at index `place` of an axis."""
        at = self.slice(axis, place, place + 1, 1)
        shape = at.shape[:axis] + at.shape[axis + 1 :]
        return replace(at, shape=shape, stride=at.stride[:axis] + at.stride[axis + 1 :])

    def slice(self, axis: int, start: int, stop: int, step: int) -> "StridedLayout":
        """Return the layout of every `step`-th index in [start, stop) of an axis."""
        shape, stride = [*self.shape], [*self.stride]
        begin = self.begin + start * stride[axis] * self.itemsize
        shape[axis], stride[axis] = -(-(stop - start) // step), stride[axis] * step
        return replace(self, begin=begin, shape=tuple(shape), stride=tuple(stride))

    def permute(self, order: Sequence[int]) -> "StridedLayout":
        """Return the layout with its axes in the given order."""
        shape = tuple(self.shape[axis] for axis in order)
        return replace(self, shape=shape, stride=tuple(self.stride[a] for a in order))

    def unsqueeze(self, axis: int) -> "StridedLayout":
        """Return the layout with one more axis, of size 1."""
        return replace(
            self,
            shape=(*self.shape[:axis], 1, *self.shape[axis:]),
            stride=(*self.stride[:axis], 0, *self.stride[axis:]),
        )

    def expand(self, shape: Sequence[int]) -> "StridedLayout":
        """Return the layout with axes of size 1 expanded to the sizes of a shape."""
        steps = zip(self.stride, self.shape, shape, strict=True)
        stride = tuple(0 if size == 1 < wide else step for step, size, wide in steps)
        return replace(self, shape=tuple(shape), stride=stride)

    def view(self, shape: Sequence[int]) -> "StridedLayout":
        """Return the layout of a contiguous tensor in another shape."""
        return replace(self, shape=tuple(shape), stride=_contiguous(shape))

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the strides, with 0 for axes of size 1, whose stride has no effect."""
        pairs = zip(self.stride, self.shape, strict=True)
        return tuple(stride if size > 1 else 0 for stride, size in pairs)

    @property
    def is_contiguous(self) -> bool:
        """Tell whether the elements lie in order, without gaps."""
        return self.steps == replace(self, stride=_contiguous(self.shape)).steps

    def is_at(self, other: "StridedLayout") -> bool:
        """Tell whether another layout has the same elements in the same shape."""
        mine, others = (self.begin, self.shape), (other.begin, other.shape)
        return mine == others and self.steps == other.steps


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def views_between(whole: StridedLayout, part: StridedLayout) -> Views | None:
    """Return the views that lead from one tensor to another in its memory.

    Return None if no views lead there.
    """
    if whole.kind != part.kind:
        return None
    for first in ((), _split(whole, part)):
        base = _through(whole, first)
        views = _views(base, part)
        if views is not None and _through(base, views).is_at(part):
            return (*first, *views)
    return None


def taken(tensor: Tensor, views: Views) -> Tensor:
    """Return the result of applying `views` to a tensor, in order."""
    for name, arguments in views:
        tensor = getattr(torch.ops.aten, name)(tensor, *arguments)
    return tensor


def _through(layout: StridedLayout, views: Views) -> StridedLayout:
    for name, arguments in views:
        view: Callable[..., StridedLayout] = getattr(layout, name)
        layout = view(*arguments)
    return layout


def touched_axes(views: Views, rank: int) -> set[int]:
    """Return the axes of a tensor with `rank` axes that `views` cut."""
    if any(name == "view" for name, _ in views):
        return set(range(rank))
    # Slices come first, then selections from the last axis on, so axes keep their
    # numbers.
    return {int(a[0]) for name, a in views if name in ("select", "slice")}  # type: ignore[call-overload]


def _split(whole: StridedLayout, part: StridedLayout) -> Views:
    """Return views that split the axes of a tensor at the strides of a part of it.

    Return no views if the tensor is not contiguous, or if the strides of the part do
    not divide its axes.
    """
    order = sorted(range(len(whole.shape)), key=whole.steps.__getitem__, reverse=True)
    if not whole.permute(order).is_contiguous:
        return ()
    shape, left = [], prod(whole.shape)
    for step in sorted({step for step in part.steps if step}, reverse=True):
        if left % step:
            return ()
        shape.append(left // step)
        left = step
    return (("permute", (order,)), ("view", ([*shape, left],)))


def _views(whole: StridedLayout, part: StridedLayout) -> Views | None:
    """Return views that slice a tensor to a part of it, None if no views do."""
    starts = _starts(whole, part)
    if starts is None:
        return None
    axes = _matched(whole, part, starts)
    if axes is None:
        return None
    views: list[View] = []
    for own, axis in axes.items():
        step = part.stride[own] // whole.stride[axis] if part.shape[own] > 1 else 1
        stop = starts[axis] + (part.shape[own] - 1) * step + 1
        if (starts[axis], stop, step) != (0, whole.shape[axis], 1):
            views.append(("slice", (axis, starts[axis], stop, step)))
    dropped = set(range(len(whole.shape))) - {*axes.values()}
    views += [("select", (axis, starts[axis])) for axis in sorted(dropped)[::-1]]
    kept = sorted(axes.values())
    return (*views, *_arranged(part, [kept.index(a) for a in axes.values()], axes))


def _arranged(
    part: StridedLayout, order: Sequence[int], matched: dict[int, int]
) -> list[View]:
    """Return the views that bring sliced axes to the order and shape of a part.

    `matched` is axis of the part -> axis of the whole. The part's axes of stride 0 are
    added.
    """
    views: list[View] = []
    if list(order) != sorted(order):
        views.append(("permute", (list(order),)))
    added = [axis for axis in range(len(part.shape)) if axis not in matched]
    views += [("unsqueeze", (axis,)) for axis in added]
    if any(part.shape[axis] > 1 for axis in added):
        views.append(("expand", (list(part.shape),)))
    return views


def _starts(whole: StridedLayout, part: StridedLayout) -> list[int] | None:
    """Return the index, by axis of the whole, of a part's first element.

    Return None if that element is not in the whole.
    """
    nbytes = part.begin - whole.begin
    left, between = divmod(nbytes, whole.itemsize)
    steps, starts = whole.steps, [0] * len(whole.shape)
    for axis in sorted(range(len(steps)), key=steps.__getitem__, reverse=True):
        if steps[axis]:
            starts[axis] = min(left // steps[axis], whole.shape[axis] - 1)
            left -= starts[axis] * steps[axis]
    return None if between or left or nbytes < 0 else starts


def _matched(
    whole: StridedLayout, part: StridedLayout, starts: Sequence[int]
) -> dict[int, int] | None:
    """Return axis of a part -> axis of the whole, in the order of the part's axes.

    Return None if an axis with more than one element matches no axis of the whole.
    """
    matched: dict[int, int] = {}
    steps = part.steps
    for own in sorted(range(len(steps)), key=steps.__getitem__, reverse=True):
        axes = range(len(whole.shape))
        free = [axis for axis in axes if axis not in matched.values()]
        fitting = [a for a in free if _fits(whole, a, part, own, starts[a])]
        if fitting:
            matched[own] = max(fitting, key=whole.stride.__getitem__)
        elif steps[own]:
            return None
    return dict(sorted(matched.items()))


def _fits(
    whole: StridedLayout, axis: int, part: StridedLayout, own: int, start: int
) -> bool:
    """Tell whether axis `own` of a part takes its elements along `axis` of the whole.

    `start` is the index of the first of these elements.
    """
    size, step, stride = part.shape[own], part.stride[own], whole.stride[axis]
    if size == 1:
        return whole.shape[axis] == 1 and step == stride
    if whole.shape[axis] == 1 or not step or not stride or step % stride:
        return False
    return start + (size - 1) * (step // stride) < whole.shape[axis]
