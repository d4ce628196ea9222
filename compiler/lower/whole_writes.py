"""Find nodes that compute all the new content of a state or of a caller's array."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvc.compiler.ir import Method, Node, Value
from kvc.schema.ops import OPS, RESHAPING_VIEWS, Aliasing


@dataclass(frozen=True, slots=True)
class WholeWrite:
    """A node that could fill a piece of memory anew.

    Attributes:
        old: what the memory holds when the method begins.
        index: of the node.
        maker: the node; updates and reshapes of its one result may follow.
    """

    old: Value
    index: int
    maker: Node


def whole_writes(method: Method) -> Iterator[WholeWrite]:
    """Yield the makers of new contents that have the type of the old ones."""
    olds = {name: value for value, name in method.state_in}
    inputs = dict(zip(method.input_names, method.inputs, strict=True))
    pairs = [(olds.get(name), new) for new, name in method.state_out]
    pairs += [(inputs[name], new) for new, name in method.input_out]
    makers = {v.id: i for i, node in enumerate(method.nodes) for v in node.outputs}
    for old, new in pairs:
        index = _maker(method, makers, new)
        if old is None or index is None:
            continue
        maker = method.nodes[index]
        fresh = OPS[maker.op].aliasing is Aliasing.FRESH
        if fresh and [value.type for value in maker.outputs] == [old.type]:
            yield WholeWrite(old, index, maker)


def _maker(method: Method, makers: dict[int, int], new: Value) -> int | None:
    """Return the node at the end of a chain of updates and reshapes."""
    while (index := makers.get(new.id)) is not None:
        node = method.nodes[index]
        update = OPS[node.op].aliasing is Aliasing.UPDATE
        if not update and node.op not in RESHAPING_VIEWS:
            return index
        new = node.inputs[0]
    return None
