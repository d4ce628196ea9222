"""Let readers skip copies that change nothing: a whole `copy`, `clone`, `alias`.

`buffer.copy_(value)` is imported as `copy(buffer, value)`, which is `value` itself if
shape and dtype agree. Memory does not matter here: where a state's new value must be
moved into the state, or an old value must be kept from being overwritten,
`compiler/in_place` adds the copy.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.passes.rewrite import each_method, rename_node, rename_results

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
        return each_method(program, _forward)


def _forward(method: Method) -> Method:
    names: dict[int, Value] = {}
    kept = []
    for node in method.nodes:
        node = rename_node(node, names)
        copied = _copied_value(node)
        if copied is None:
            kept.append(node)
        else:
            names[node.outputs[0].id] = copied
    return rename_results(replace(method, nodes=tuple(kept)), names)


def _copied_value(node: Node) -> Value | None:
    """Return the value that a node only repeats, None where it does more."""
    if node.op not in _REPEATS:
        return None
    copied = node.arguments[_REPEATS[node.op]]
    assert isinstance(copied, Value)
    return copied if copied.type == node.outputs[0].type else None
