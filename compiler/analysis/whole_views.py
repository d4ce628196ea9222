"""Views of all elements of a value: in another shape, or with permuted axes.

A reshape or permutation can be undone by a second one. Two successive reshapes are one
reshape, and two successive permutations are one permutation.
"""

from dataclasses import dataclass

from kvc.compiler.ir import Argument, Node
from kvc.schema.ops import PERMUTING, RESHAPING_VIEWS
from kvc.schema.types import TensorType

_PERMUTE, _VIEW = "aten::permute", "aten::view"


@dataclass(frozen=True, slots=True)
class WholeView:
    """The change of shape or of axes that a view makes, without the viewed value.

    Attributes:
        before: the type of the viewed value.
        after: the type of the view.
        order: axis of the view -> axis of the value; None for a reshape.
        source: the user's line.
    """

    before: TensorType
    after: TensorType
    order: tuple[int, ...] | None
    source: str

    @property
    def reorders(self) -> bool:
        """Tell whether this view permutes axes."""
        return self.order is not None

    @property
    def is_nothing(self) -> bool:
        """Tell whether the view changes nothing."""
        in_order = self.order is None or self.order == tuple(range(len(self.order)))
        return in_order and self.before == self.after

    @property
    def op(self) -> str:
        """Return the name of the operator that makes the view."""
        return _VIEW if self.order is None else _PERMUTE

    @property
    def settings(self) -> tuple[Argument, ...]:
        """Return the operator's arguments that follow the viewed value."""
        return (self.after.dims,) if self.order is None else (self.order,)

    def undone(self) -> "WholeView":
        """Return the inverse view."""
        back = None
        if self.order is not None:
            back = tuple(self.order.index(axis) for axis in range(len(self.order)))
        return WholeView(self.after, self.before, back, self.source)

    def then(self, other: "WholeView") -> "WholeView":
        """Return this view followed by `other`, of the same kind, as one view."""
        order = None
        if self.order is not None and other.order is not None:
            order = tuple(self.order[axis] for axis in other.order)
        return WholeView(self.before, other.after, order, other.source)


def whole_view(node: Node) -> WholeView | None:
    """Return a node as a `WholeView`, None if it is no view of all elements."""
    if node.op not in RESHAPING_VIEWS | PERMUTING:
        return None
    order = None if node.op in RESHAPING_VIEWS else axis_order(node)
    return WholeView(node.inputs[0].type, node.outputs[0].type, order, node.source)


def axis_order(node: Node) -> tuple[int, ...]:
    """Return, for a permutation, the operand's axis for each axis of the result."""
    rank = len(node.outputs[0].type.dims)
    if node.op == _PERMUTE:
        order = node.arguments[1]
        assert isinstance(order, tuple)
        return tuple(axis % rank for axis in order if isinstance(axis, int))
    axes = list(range(rank))
    a, b = (axis % rank for axis in node.arguments[1:] if isinstance(axis, int))
    axes[a], axes[b] = axes[b], axes[a]
    return tuple(axes)
