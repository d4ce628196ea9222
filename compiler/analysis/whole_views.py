"""Views of all elements of a value: in another shape, or with axes in another order.

Another view can undo such a view. A reshape keeps the elements in their order, and two
successive ones are one. So are two successive reorderings of axes.
"""

from dataclasses import dataclass

from kvc.compiler.ir import Argument, Node
from kvc.schema.ops import PERMUTING, RESHAPING_VIEWS
from kvc.schema.types import TensorType

_PERMUTE, _VIEW = "aten::permute", "aten::view"


@dataclass(frozen=True, slots=True)
class WholeView:
    """One view, apart from whose it is.

    Attributes:
        before, after: the types of the value and of the view.
        order: for each axis of the view the axis that it was, None for a reshape.
        source: the user's line.
    """

    before: TensorType
    after: TensorType
    order: tuple[int, ...] | None
    source: str

    @property
    def reorders(self) -> bool:
        """Tell whether this view puts axes in another order."""
        return self.order is not None

    @property
    def is_nothing(self) -> bool:
        """Tell whether the view is the value as it is."""
        in_order = self.order is None or self.order == tuple(range(len(self.order)))
        return in_order and self.before == self.after

    @property
    def op(self) -> str:
        """Return the op that makes the view."""
        return _VIEW if self.order is None else _PERMUTE

    @property
    def settings(self) -> tuple[Argument, ...]:
        """Return the arguments after the value."""
        return (self.after.dims,) if self.order is None else (self.order,)

    def undone(self) -> "WholeView":
        """Return the view that puts everything back."""
        back = None
        if self.order is not None:
            back = tuple(self.order.index(axis) for axis in range(len(self.order)))
        return WholeView(self.after, self.before, back, self.source)

    def then(self, other: "WholeView") -> "WholeView":
        """Return this view and another of its kind as one."""
        order = None
        if self.order is not None and other.order is not None:
            order = tuple(self.order[axis] for axis in other.order)
        return WholeView(self.before, other.after, order, other.source)


def whole_view(node: Node) -> WholeView | None:
    """Return what a node says that is a view of all elements, None for any other."""
    if node.op not in RESHAPING_VIEWS | PERMUTING:
        return None
    order = None if node.op in RESHAPING_VIEWS else axis_order(node)
    return WholeView(node.inputs[0].type, node.outputs[0].type, order, node.source)


def axis_order(node: Node) -> tuple[int, ...]:
    """Return for each axis of a reordering's result the axis that it was."""
    rank = len(node.outputs[0].type.dims)
    if node.op == _PERMUTE:
        order = node.arguments[1]
        assert isinstance(order, tuple)
        return tuple(axis % rank for axis in order if isinstance(axis, int))
    axes = list(range(rank))
    a, b = (axis % rank for axis in node.arguments[1:] if isinstance(axis, int))
    axes[a], axes[b] = axes[b], axes[a]
    return tuple(axes)
