"""Turn a `view` of a tensor that is not contiguous into a `reshape` that copies.

In the IR a view is only a new shape. In memory, the elements of the view's operand must
lie in the order of the operand's indices, which is not so for a transposed tensor.
Every operator that is not a view writes its result in that order, except into growing
memory, which has spare capacity. So only chains of views are followed. torch's own rule
decides whether a view is possible, for tensors without memory, at several sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kvc.compiler.analysis.growable import Growable, find_growable
from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.rewrite import NodeList, each_method, rename_node
from kvc.compiler.ir.verify import sample_sizes
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Affine


@dataclass(frozen=True, slots=True)
class MaterializeViews:
    """Replace a view by a copy if it cannot share the memory of its operand."""

    name: ClassVar[str] = "materialize-views"

    def run(self, program: Program) -> Program:
        """Return the program in which each view shares memory with its operand."""
        samples = tuple(sample_sizes(program.symbols))
        growable = find_growable(program)
        return each_method(
            program, lambda method: _materialize(method, growable[method.name], samples)
        )


def _materialize(
    method: Method, growable: Growable, samples: tuple[dict[str, int], ...]
) -> Method:
    layouts = {
        value.id: tuple(
            _with_room(value, growable[value.id], sizes) for sizes in samples
        )
        for value in _all_values(method)
        if value.id in growable
    }
    rebuilt = NodeList(method)
    for node in method.nodes:
        if OPS[node.op].aliasing is Aliasing.VIEW:
            node = _follow(node, layouts, samples)
        elif OPS[node.op].aliasing is Aliasing.CONTROL:
            node = _with_operands_in_order(node, growable, layouts, rebuilt)
        rebuilt.keep(node)
    return replace(method, nodes=tuple(rebuilt.nodes))


def _all_values(method: Method) -> list[Value]:
    bound = [value for value, _ in method.state_in]
    made = [value for node in method.nodes for value in node.outputs]
    return [*method.inputs, *bound, *made]


def _with_operands_in_order(
    node: Node,
    growable: Growable,
    layouts: Mapping[int, tuple[Tensor, ...]],
    rebuilt: NodeList,
) -> Node:
    """Return a control node that reads contiguous clones of operands that are not.

    A growable operand stays as it is, since the input of the block is growable too.
    """
    names: dict[int, Value] = {}
    for value in node.inputs:
        layout = layouts.get(value.id, ())
        strided = not all(tensor.is_contiguous() for tensor in layout)
        if strided and value.id not in growable and value.id not in names:
            arguments: tuple[Argument, ...] = (value,)
            names[value.id] = rebuilt.add(
                "aten::clone", arguments, value.type, node.source
            )
    return rename_node(node, names)


def _follow(
    node: Node,
    layouts: dict[int, tuple[Tensor, ...]],
    samples: tuple[dict[str, int], ...],
) -> Node:
    """Record the layout of a view's results; return a reshape if the view must copy."""
    base = node.arguments[0]
    assert isinstance(base, Value)
    operands = layouts.get(base.id) or tuple(
        torch.empty(base.type.shape(sizes), device="meta") for sizes in samples
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


def _with_room(value: Value, axis: int, sizes: dict[str, int]) -> Tensor:
    shape = list(value.type.shape(sizes))
    shape[axis] += 1
    return torch.empty(shape, device="meta").narrow(axis, 0, shape[axis] - 1)


def _call(node: Node, operand: Tensor, sizes: dict[str, int]) -> tuple[Tensor, ...]:
    rest = [_sized(argument, sizes) for argument in node.arguments[1:]]
    name, _, overload = node.op.removeprefix("aten::").partition(".")
    found = getattr(getattr(torch.ops.aten, name), overload or "default")
    assert isinstance(found, torch._ops.OpOverload)
    result = found(operand, *rest)
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _sized(argument: Argument, sizes: dict[str, int]) -> object:
    if isinstance(argument, tuple):
        return [_sized(item, sizes) for item in argument]
    assert not isinstance(argument, Value | DType)
    return argument.evaluate(sizes) if isinstance(argument, Affine) else argument
