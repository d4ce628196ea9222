"""Turn a `view` whose operand does not lie in order into a `reshape` that copies.

In the IR a view is a shape and nothing more. In memory it needs the operand's
elements in order, which a transposed operand does not have. Every op that is not a
view writes its result in order, apart from what grows: that lies in memory for more
than it holds. So it is enough to follow chains of views; this is done with torch's own
rule, on tensors without memory, at several sizes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.verify import sample_sizes
from kvc.compiler.passes.rewrite import each_method
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Affine


@dataclass(frozen=True, slots=True)
class MaterializeViews:
    """Copy where a view cannot be one."""

    name: ClassVar[str] = "materialize-views"

    def run(self, program: Program) -> Program:
        """Return the program in which every view can share memory."""
        samples = tuple(sample_sizes(program.symbols))
        grows = {s.name: s.grows for s in program.states if s.grows is not None}
        return each_method(program, lambda method: _materialize(method, grows, samples))


def _materialize(
    method: Method, grows: Mapping[str, int], samples: tuple[dict[str, int], ...]
) -> Method:
    layouts = {
        value.id: tuple(_with_room(value, axis, sizes) for sizes in samples)
        for value, axis in growing_values(method, grows)
    }
    nodes = []
    for node in method.nodes:
        if OPS[node.op].aliasing is Aliasing.VIEW:
            node = _follow(node, layouts, samples)
        nodes.append(node)
    return replace(method, nodes=tuple(nodes))


def _follow(
    node: Node,
    layouts: dict[int, tuple[Tensor, ...]],
    samples: tuple[dict[str, int], ...],
) -> Node:
    """Note the layout of a view's results; return it as a copy if it cannot be one."""
    base = node.arguments[0]
    assert isinstance(base, Value)
    operands = layouts.get(base.id) or tuple(
        _in_order(base, sizes) for sizes in samples
    )
    try:
        results = [
            _call(node, operand, sizes)
            for operand, sizes in zip(operands, samples, strict=True)
        ]
    except RuntimeError:
        return replace(node, op="aten::reshape")
    for i, value in enumerate(node.outputs):
        layouts[value.id] = tuple(parts[i] for parts in results)
    return node


def growing_values(
    method: Method, grows: Mapping[str, int]
) -> Iterator[tuple[Value, int]]:
    """Yield (value, axis) for what lies in memory that has room along an axis.

    Args:
        method: with its appends made explicit.
        grows: the axis of each state that grows.
    """
    yield from ((v, grows[name]) for v, name in method.state_in if name in grows)
    for node in method.nodes:
        if node.op == "kvc::append":
            axis = node.arguments[2]
            assert isinstance(axis, int)
            axis %= len(node.outputs[0].type.dims)
            yield node.outputs[0], axis
            if node.inputs[0] in method.inputs:
                yield node.inputs[0], axis


def _with_room(value: Value, axis: int, sizes: dict[str, int]) -> Tensor:
    shape = list(value.type.shape(sizes))
    shape[axis] += 1
    room = torch.empty(shape, device="meta")
    return room.narrow(axis, 0, shape[axis] - 1)


def _in_order(value: Value, sizes: dict[str, int]) -> Tensor:
    return torch.empty(value.type.shape(sizes), device="meta")


def _call(node: Node, operand: Tensor, sizes: dict[str, int]) -> tuple[Tensor, ...]:
    rest = [_sized(argument, sizes) for argument in node.arguments[1:]]
    result = _torch_op(node.op)(operand, *rest)
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _torch_op(op: str) -> torch._ops.OpOverload:
    name, _, overload = op.removeprefix("aten::").partition(".")
    found = getattr(getattr(torch.ops.aten, name), overload or "default")
    assert isinstance(found, torch._ops.OpOverload)
    return found


def _sized(argument: Argument, sizes: dict[str, int]) -> object:
    if isinstance(argument, tuple):
        return [_sized(item, sizes) for item in argument]
    assert not isinstance(argument, Value | DType)
    return argument.evaluate(sizes) if isinstance(argument, Affine) else argument
