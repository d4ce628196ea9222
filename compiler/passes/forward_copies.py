"""Let readers skip copies that change nothing: a whole `copy`, `clone`, `alias`.

`buffer.copy_(value)` is imported as `copy(buffer, value)`, which is `value` itself if
shape and dtype agree. Memory does not matter here: where a state's new value must be
moved into the state, or an old value must be kept from being overwritten,
`compiler/in_place` adds the copy.
"""

from dataclasses import dataclass
from typing import ClassVar

from kvc.compiler.ir import Node, Program, Value
from kvc.compiler.ir.rewrite import each_method, read_through

# Op -> place of the argument that the result repeats where the types are equal.
_REPEATS = {
    "aten::copy": 1,
    "aten::alias": 0,
    "aten::clone": 0,
    "aten::view": 0,
    "aten::expand": 0,
    "aten::slice.Tensor": 0,
}


@dataclass(frozen=True, slots=True)
class ForwardCopies:
    """Replace the result of a copy that changes nothing by what it copies."""

    name: ClassVar[str] = "forward-copies"

    def run(self, program: Program) -> Program:
        """Return the program without such copies."""
        return each_method(program, lambda method: read_through(method, _copied))


def _copied(node: Node) -> Node | tuple[Value, ...]:
    """Return the value that a node only repeats, the node where it does more."""
    if node.op not in _REPEATS:
        return node
    copied = node.arguments[_REPEATS[node.op]]
    assert isinstance(copied, Value)
    return (copied,) if copied.type == node.outputs[0].type else node
