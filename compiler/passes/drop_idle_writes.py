"""Drop writes of values that are already there.

`cache[:, 2:4] += x` is imported as a write of the sum, and then a write of the slice
that was just written into the same slice, since Python assigns what `+=` returns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kvc.compiler.ir import Method, Node, Program, Value
from kvc.compiler.ir.rewrite import each_method, read_through
from kvc.compiler.passes.axis_writes import axis_write
from kvc.compiler.passes.same_index import equal, is_read_at


@dataclass(frozen=True, slots=True)
class DropIdleWrites:
    """Read through writes that change nothing."""

    name: ClassVar[str] = "drop-idle-writes"

    def run(self, program: Program) -> Program:
        """Return the program without such writes."""
        return each_method(program, _drop)


def _drop(method: Method) -> Method:
    makers: dict[int, Node] = {}

    def written(node: Node) -> Node | tuple[Value, ...]:
        if _is_idle(node, makers):
            return (node.inputs[0],)
        makers.update((value.id, node) for value in node.outputs)
        return node

    return read_through(method, written)


def _is_idle(node: Node, makers: Mapping[int, Node]) -> bool:
    """Tell whether a node writes what it has read, at places that are known to exist.

    They are fixed, or have just been written at: otherwise the write may have to raise.
    """
    write = axis_write(node) if node.op == "aten::index_copy" else None
    if write is None:
        return False
    read = is_read_at(write.source, write.target, write.axis, write.index, makers)
    counted, before = makers.get(write.index.id), makers.get(write.target.id)
    fixed = counted is not None and counted.op == "aten::arange.start_step"
    last = axis_write(before) if before is not None else None
    again = last is not None and (
        last.axis == write.axis and equal(last.index, write.index, makers)
    )
    return read and (fixed or again)
