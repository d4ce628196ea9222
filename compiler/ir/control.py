"""Control flow in the IR: nodes that run blocks, and blocks, which are methods.

A block is a `Method` with a number. One node in the program runs the block, and has the
number as an argument. A block has neither role nor state; it computes on its inputs,
one for each operand of the node.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from kvc.compiler.ir.graph import Argument, Method, Node, Program, Value
from kvc.schema.control import Control, read_control
from kvc.schema.ops import COND, CONTROL_OPS, DELEGATE, SCAN, WHILE
from kvc.schema.types import TensorType


def control_of(node: Node) -> Control[Value] | None:
    """Return the control flow of a control node, None for any other node."""
    if node.op not in CONTROL_OPS:
        return None
    return cast("Control[Value]", read_control(node.op, node.arguments))


def arguments_of(control: Control[Value]) -> tuple[Argument, ...]:
    """Return the arguments of a control node: the inverse of `control_of`."""
    last: tuple[Argument, ...] = (control.operands, control.over)
    if control.op == COND:
        return (control.pred, *control.blocks, *last)
    if control.op == DELEGATE:
        return (*control.blocks, *last)
    if control.op == WHILE:
        return (*control.blocks, control.carried, *last)
    assert control.op == SCAN
    return (*control.blocks, control.carried, control.scanned, *last)


def with_over(node: Node, over: tuple[int | None, ...]) -> Node:
    """Return a control node whose result i overwrites operand `over[i]`.

    If `over[i]` is None, result i overwrites no operand.
    """
    control = control_of(node)
    assert control is not None
    return replace(node, arguments=arguments_of(replace(control, over=over)))


def blocks_by_number(program: Program) -> dict[int, Method]:
    """Return block number -> block for all blocks of a program."""
    return {m.block: m for m in program.methods if m.block is not None}


def entries(program: Program) -> tuple[Method, ...]:
    """Return the methods that a caller can call."""
    return tuple(method for method in program.methods if method.block is None)


def blocks_of(method: Method, blocks: Mapping[int, Method]) -> tuple[Method, ...]:
    """Return the blocks that a method and its blocks run, each after its caller."""
    found: list[Method] = []
    for node in method.nodes:
        control = control_of(node)
        for number in control.blocks if control is not None else ():
            found += [blocks[number], *blocks_of(blocks[number], blocks)]
    return tuple(found)


def control_faults(node: Node, blocks: Mapping[int, Method]) -> Iterator[str]:
    """Yield the mismatches between a control node and its blocks."""
    control = control_of(node)
    assert control is not None
    results = [value.type for value in node.outputs]
    if len(results) != len(control.over):
        yield f"{len(results)} results, {len(control.over)} places"
    operands = [value.type for value in control.operands]
    for which, number in enumerate(control.blocks):
        block = blocks.get(number)
        if block is None:
            yield f"there is no block {number}"
            continue
        if block.state_in or block.state_out:
            yield f"block {number} has states"
        taken = tuple(value.type for value in block.inputs)
        if taken != control.input_types(operands):
            yield f"block {number} takes {_types(taken)}"
        given = [value.type for value in block.outputs]
        wanted = control.output_types(which, operands, results)
        fits = len(given) == len(wanted) and all(
            one is None or one == kind for kind, one in zip(given, wanted, strict=True)
        )
        if not fits:
            yield f"block {number} gives {_types(given)}"


def _types(kinds: Sequence[TensorType]) -> str:
    return ", ".join(map(str, kinds))
