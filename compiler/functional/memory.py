"""The memory of traced tensors: its current value, and the paths that lead into it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, fx
from torch._ops import OpOverload

from kvc.compiler.functional.by_size import ByLayout
from kvc.compiler.functional.views import Box, Unwritable, View


@dataclass(slots=True, eq=False)
class Memory:
    """The memory of a tensor, and of all tensors that view it.

    Attributes:
        value: the node with the current content, in the shape of the tensor that made
            the memory.
        version: how many writes there have been.
        linked: memory that is or may be this one -> why it cannot be read once this
            one is written.
        stale: why it cannot be read any more: a linked one has been written.
        coupled: calls, to or from this memory, that return views at some sizes.
    """

    value: fx.Node
    version: int = 0
    linked: dict["Memory", str] = field(default_factory=dict)
    stale: Unwritable | None = None
    coupled: list[ByLayout] = field(default_factory=list)

    def related(self) -> dict["Memory", str]:
        """Return this memory and those that may be it, also by way of others."""
        found = {self: ""}
        left = [self]
        while left:
            for other, reason in left.pop().linked.items():
                if other not in found:
                    found[other] = reason
                    left.append(other)
        return found


@dataclass(slots=True, eq=False)
class Several:
    """A view with several results, as `split` has them.

    Attributes:
        op: the operator.
        args: its arguments after the first one.
        results: its results.
    """

    op: OpOverload
    args: tuple[object, ...]
    results: Sequence[Tensor]
    _node: fx.Node | None = None
    _version: int = 0

    def node_of(self, version: int) -> fx.Node | None:
        """Return the node of the call on the content of a version, None without one."""
        return self._node if version == self._version else None

    def keep(self, node: fx.Node, version: int) -> None:
        """Keep the node of the call on the content of a version."""
        self._node, self._version = node, version


@dataclass(slots=True, eq=False)
class Place:
    """Where a tensor lies: in which memory, and by which view of which other tensor.

    Attributes:
        tensor: the tensor; it is kept so that its identity is not used again.
        memory: its memory.
        parent: the place that it views; None for the tensor that made the memory.
        view: the view of the parent.
        node: a node with the content of the tensor as of `version`.
        several: the call that returned the tensor as the result `index`, if it has
            several results.
    """

    tensor: Tensor
    memory: Memory
    parent: "Place | None" = None
    view: View | None = None
    node: fx.Node | None = None
    version: int = 0
    several: Several | None = None
    index: int = 0

    def is_same(self, other: "Place") -> bool:
        """Tell whether another place is reached by the same views."""
        if self is other:
            return True
        if self.memory is not other.memory or not self.parent or not other.parent:
            return self.memory is other.memory and self.parent is other.parent
        assert self.view is not None
        assert other.view is not None
        return self.view.is_like(other.view) and self.parent.is_same(other.parent)

    def path(self) -> Sequence["Place"]:
        """Return the places after the tensor that made the memory, up to this one."""
        found: list[Place] = []
        place = self
        while place.parent is not None:
            found.append(place)
            place = place.parent
        return found[::-1]


def steps_of(path: Sequence[Place]) -> list[tuple[Place, Box | View]]:
    """Split a path into boxes and single views, each with the place it begins at."""
    found: list[tuple[Place, Box | View]] = []
    for place in path:
        assert place.parent is not None
        assert place.view is not None
        last = found[-1][1] if found else None
        if isinstance(last, Box) and last.add(place.view):
            continue
        box = Box.whole(place.view.source)
        found.append((place.parent, box if box.add(place.view) else place.view))
    return found
