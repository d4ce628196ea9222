"""Scratch memory for blocks: a result of the node that runs them.

In: a method whose blocks have been planned. Out: the method as the file has it: a
control node names blocks by their numbers in the method, and has one more result, with
enough bytes for the block that needs most. For the planner, and for the checks of its
plan, that is a value like any other.
"""

from collections.abc import Mapping
from dataclasses import replace

from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.ir.control import arguments_of, control_of
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType


def with_workspaces(
    method: Method, numbers: Mapping[int | None, int], needs: Mapping[int, int]
) -> Method:
    """Return the method with scratch memory for its blocks.

    Args:
        method: proven.
        numbers: number of a block in the program -> in the file's method.
        needs: number of a block in the program -> bytes of its scratch memory.
    """
    count, nodes = method.next_id(), list[Node]()
    for node in method.nodes:
        control = control_of(node)
        if control is not None:
            local = tuple(numbers[number] for number in control.blocks)
            node = replace(node, arguments=arguments_of(replace(control, blocks=local)))
        if control is not None and control.workspaces:
            nbytes = max(needs[number] for number in control.blocks)
            space = Value(count, TensorType(DType.UINT8, (nbytes,)))
            count += 1
            node = replace(node, outputs=(*node.outputs, space))
        nodes.append(node)
    return replace(method, nodes=tuple(nodes))
