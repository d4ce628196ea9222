"""Run a method of the IR with torch's own operators.

`interpret` defines the meaning of a method: every value has memory of its own there.
`run_in_memory` lets values share memory as the compiler lays them out, which gives the
same only if the order of the steps is right.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import kvc.schema.torch_ops  # noqa: F401  # registers kvc's own operators
from kvc.compiler.ingest.symbols import TORCH_DTYPES
from kvc.compiler.ir import Method, Value
from kvc.compiler.ir.control import control_of
from kvc.compiler.place.aliasing import analyse
from kvc.schema.dtypes import DType
from kvc.schema.ops import COND, OPS, WHILE, Aliasing
from kvc.schema.types import Affine

FROM_KVC = {kind: dtype for dtype, kind in TORCH_DTYPES.items()}


Blocks = Mapping[int, Method]
Called = tuple[list[Tensor], dict[str, Tensor], dict[str, Tensor]]


def interpret(method, inputs, states, sizes=None, blocks=None) -> Called:
    values = {v.id: tensor for v, tensor in zip(method.inputs, inputs, strict=True)}
    for value, name in method.state_in:
        shape = value.type.shape(sizes or {})
        values[value.id] = states[name][tuple(map(slice, shape))]
    _run(method, values, sizes or {}, blocks or {})
    changed = {name: values[value.id].clone() for value, name in method.state_out}
    written = {name: values[value.id].clone() for value, name in method.input_out}
    outputs = [values[v.id].clone() for v in method.outputs]
    return outputs, {**states, **changed}, written


def _run(method, values, sizes, blocks) -> None:
    for node in method.nodes:
        control = control_of(node)
        if control is None:
            results = _call(node, values, sizes)
        else:
            results = _controlled(control, values, blocks)
        for value, result in zip(node.outputs, results, strict=True):
            values[value.id] = result.clone()


def _controlled(control, values, blocks) -> list[Tensor]:
    def run(number: int, given: Sequence[Tensor]) -> list[Tensor]:
        block = blocks[control.blocks[number]]
        inside = {v.id: tensor for v, tensor in zip(block.inputs, given, strict=True)}
        _run(block, inside, {}, blocks)
        return [inside[v.id] for v in block.outputs]

    given = [values[v.id] for v in control.operands]
    if control.op == COND:
        assert control.pred is not None
        return run(0 if values[control.pred.id] else 1, given)
    if control.op == WHILE:
        while run(0, given)[0]:
            given[: control.carried] = run(1, given)
        return given[: control.carried]
    carried, through, *rest = given
    stacked = []
    for row in through:
        carried, made = run(0, [carried, row, *rest])
        stacked.append(made)
    return [carried, torch.stack(stacked)]


def _call(node, values, sizes) -> list[Tensor]:
    arguments = [_argument(a, values, sizes) for a in node.arguments]
    match node.op:
        case "kvc::check_index" | "kvc::check_rows":
            return []
        case "kvc::append":
            return [torch.cat(arguments[:2], arguments[2])]
        case "kvc::replace":
            return [arguments[1]]
    namespace, _, rest = node.op.partition("::")
    name, _, overload = rest.partition(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    named = {p.name: a for p, a in zip(OPS[node.op].params, arguments, strict=True)}
    result = op(**named)
    return list(result) if isinstance(result, list | tuple) else [result]


def _argument(argument: Any, values: Mapping[int, Tensor], sizes: Any) -> Any:
    if isinstance(argument, tuple):
        return [_argument(item, values, sizes) for item in argument]
    if isinstance(argument, Value):
        return values[argument.id]
    if isinstance(argument, DType):
        return FROM_KVC[argument]
    return argument.evaluate(sizes) if isinstance(argument, Affine) else argument


def run_in_memory(
    method: Method, inputs: Sequence[Tensor], states: Mapping[str, Tensor]
) -> Called:
    """Return the results of `interpret`, with values that share memory as compiled."""
    base = analyse(method).base
    pairs = zip(method.inputs, inputs, strict=True)
    memory = {value.id: tensor.clone() for value, tensor in pairs}
    memory |= {value.id: states[name].clone() for value, name in method.state_in}
    for node in method.nodes:
        results = _call(node, memory, {})
        for value, result in zip(node.outputs, results, strict=True):
            if OPS[node.op].aliasing is Aliasing.VIEW:
                memory[value.id] = result
            elif value.id in base:
                memory[value.id] = memory[base[value.id]].copy_(result.clone())
            else:
                memory[value.id] = result.clone()
    changed = {name: memory[value.id].clone() for value, name in method.state_in}
    named = zip(method.inputs, method.input_names, strict=True)
    written = {name for _, name in method.input_out}
    outputs = [memory[value.id].clone() for value in method.outputs]
    kept = {name: memory[v.id].clone() for v, name in named if name in written}
    return outputs, {**states, **changed}, kept
