"""Read through what changes nothing: `copy` over a whole tensor, `alias`.

`buffer.copy_(value)` arrives as `copy(buffer, value)`, which is `value` itself when
shape and dtype agree. Memory is no matter here: where a state's new value must be
moved into the state, `StoreStates` says so. A `clone` of a state stays: whoever wrote
it wants the old value, and that copy now saves a copy of the whole state later.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.passes.rewrite import each_method, rename_node, rename_results
from kvc.schema.ops import OPS, Aliasing


@dataclass(frozen=True, slots=True)
class ForwardCopies:
    """Replace the result of a copy that changes nothing by what it copies."""

    name: ClassVar[str] = "forward-copies"

    def run(self, program: Program) -> Program:
        """Return the program without such copies."""
        return each_method(program, _forward)


def _forward(method: Method) -> Method:
    names: dict[int, Value] = {}
    states = {value.id for value, _ in method.state_in}  # and what may alias them
    kept = []
    for node in method.nodes:
        node = rename_node(node, names)
        copied = _copied_value(node, states)
        if copied is not None:
            names[node.outputs[0].id] = copied
            continue
        kept.append(node)
        if OPS[node.op].aliasing is not Aliasing.FRESH and node.inputs[0].id in states:
            states.update(value.id for value in node.outputs)
    return rename_results(replace(method, nodes=tuple(kept)), names)


def _copied_value(node: Node, states: set[int]) -> Value | None:
    """Return the value that a node only repeats, None where it does more."""
    if node.op == "aten::copy":
        copied = node.arguments[1]
    elif node.op == "aten::alias" or (
        node.op == "aten::clone" and node.inputs[0].id not in states
    ):
        copied = node.arguments[0]
    else:
        return None
    assert isinstance(copied, Value)
    return copied if copied.type == node.outputs[0].type else None
