"""Derive memory requests from a method: the size and lifetime of scratch values."""

from collections.abc import Mapping
from dataclasses import replace

from kvc.compiler.ir import Method, Node, Value
from kvc.compiler.ir.control import arguments_of, control_of
from kvc.compiler.place.aliasing import Aliases
from kvc.compiler.place.plan import Request
from kvc.schema.dtypes import DType
from kvc.schema.types import Symbol, TensorType


def requests_of(
    method: Method, aliases: Aliases, symbols: Mapping[str, Symbol]
) -> tuple[Request, ...]:
    """Return a memory request for each value that owns scratch memory.

    The request lasts from the node that computes the value to the last node that reads
    the value or a value in the same memory. Inputs live from before the first node;
    results live until after the last node. A symbolic size counts as its upper bound.
    """
    defined = [value for node in method.nodes for value in node.outputs]
    inputs = [v for v in method.inputs if v.id not in aliases.callers]
    owned = [v for v in [*inputs, *defined] if aliases.root[v.id] == v.id]
    first = dict.fromkeys((value.id for value in method.inputs), -1)
    last = dict(first)
    for index, node in enumerate(method.nodes):
        for value in node.inputs:
            last[aliases.root[value.id]] = index
        for value in node.outputs:
            first.setdefault(aliases.root[value.id], index)
            last[aliases.root[value.id]] = index
    for value in method.results:
        last[aliases.root[value.id]] = len(method.nodes)
    return tuple(
        Request(
            value.id, value.type.max_nbytes(symbols), first[value.id], last[value.id]
        )
        for value in owned
    )


# Scratch memory for blocks: a result of the node that runs them.


def with_workspaces(
    method: Method, numbers: Mapping[int | None, int], needs: Mapping[int, int]
) -> Method:
    """Return the method with scratch memory for the blocks that it runs.

    Args:
        method: a method whose writes are proven to be in place.
        numbers: number of a block in the program -> number of the block in the file's
            method.
        needs: number of a block in the program -> bytes of scratch memory of the block.
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
