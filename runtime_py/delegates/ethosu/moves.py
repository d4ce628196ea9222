"""Copies, views, joins and splits as TOSA's: elements in other places.

In: an instruction with values on grids. Out: the tensors of its results.
"""

from collections.abc import Sequence

from kvc.runtime.delegates.ethosu.lowered_values import LoweredValues, ref, whole
from kvc.runtime.delegates.ethosu.tosa import Shape
from kvc.schema.graph import Instruction


def join(values: LoweredValues, step: Instruction) -> str:
    """Join tensors along an axis."""
    joined, result = step.arguments[0], step.results[0]
    assert isinstance(joined, tuple)
    axis = whole(values.argument(step.arguments[1])) % len(values.shape(result))
    parts = [values.on_grid_of(ref(one), result) for one in joined]
    return values.builder.concat(parts, axis)


def copy(values: LoweredValues, step: Instruction) -> str:
    """Return a value in the place of another."""
    return values.on_grid_of(ref(step.arguments[1]), step.results[0])


def split(values: LoweredValues, step: Instruction) -> Sequence[str]:
    """Return the parts of a value along an axis, each on its own grid."""
    x, axis = ref(step.arguments[0]), whole(values.argument(step.arguments[2]))
    made, begin = [], 0
    for value in step.results:
        shape = values.shape(value)
        start = [0] * len(shape)
        start[axis % len(shape)] = begin
        begin += shape[axis % len(shape)]
        name = values.on_grid_of(x, value)
        made.append(values.builder.slice(name, tuple(start), shape))
    return made


def view(values: LoweredValues, step: Instruction) -> str:
    """Show the elements of a value in another way; it is on the same grid."""
    builder, result, x = values.builder, step.results[0], ref(step.arguments[0])
    arguments = [values.argument(one) for one in step.arguments]
    name = values.on_grid_of(x, result)
    old, shape = values.shape(x), values.shape(result)
    match step.op:
        case "aten::transpose.int":
            order = list(range(len(old)))
            if old:
                one, other = whole(arguments[1]), whole(arguments[2])
                order[one], order[other] = order[other], order[one]
            return builder.transpose(name, tuple(order))
        case "aten::permute":
            wanted = arguments[1]
            assert isinstance(wanted, tuple)
            turned = tuple(whole(axis) % len(old) for axis in wanted)
            return builder.transpose(name, turned)
        case "aten::expand":
            ones = (1,) * (len(shape) - len(old))
            return builder.tile(builder.reshape(name, (*ones, *old)), shape)
        case "aten::slice.Tensor" | "aten::select.int":
            part = _part(values, step.op, name, old, arguments)
            return builder.reshape(part, shape)
    return builder.reshape(name, shape)


def _part(
    values: LoweredValues, op: str, name: str, old: Shape, arguments: Sequence[object]
) -> str:
    axis = whole(arguments[1]) % len(old)
    if op == "aten::select.int":
        begin = whole(arguments[2]) % old[axis]
        end = begin + 1
    else:
        bounds = (None if a is None else whole(a) for a in arguments[2:4])
        begin, end, _ = slice(*bounds).indices(old[axis])
    start, size = [0] * len(old), list(old)
    start[axis], size[axis] = begin, end - begin
    return values.builder.slice(name, tuple(start), tuple(size))
