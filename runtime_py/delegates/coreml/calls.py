"""Write a lowered method as calls of MIL.

In: a `Function` of the lowering, which has only the states that Core ML keeps. Out: a
function of MIL. `_EMIT` has the call of each operation: primitives, the operations of
`forms.py`, and `UPDATE`, which assigns a state.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from kvc.runtime.delegates.coreml.mil import (
    Data,
    Emitter,
    Function,
    Input,
    Number,
    Numbers,
    Tensor,
    Var,
    numbers,
)
from kvc.runtime.delegates.lowering import function as lowered
from kvc.schema.backends.primitives import Primitive
from kvc.schema.frozen import frozen

UPDATE: Final = "coreml_update_state"  # operands: a state, and its new content
_P = Primitive
_DTYPES: Final = {
    "float16": "fp16",
    "float32": "fp32",
    **{name: name for name in ("int32", "int8", "bool")},
}
# The dtypes that MIL's outputs cannot have, and the dtypes that replace them.
_OUTPUTS: Final = {"fp16": "fp32", "bool": "int32"}


def function_of(given: lowered.Function, names: Sequence[str]) -> Function:
    """Return a lowered function as a function of MIL.

    Args:
        given: the lowered function.
        names: the names of the program's data, by id.
    """
    emitter, variables = Emitter(), dict[str, Var]()
    for name in (*given.inputs, *(state.name for state in given.states)):
        kind = given.tensors[name]
        variables[name] = Var(name, _DTYPES[kind.dtype], kind.shape)
    made: dict[str, Tensor] = {name: variables[name] for name in given.inputs}
    states = [variables[state.name] for state in given.states]
    for state in states:
        made[state.name] = emitter.call(
            "read_state", state.dtype, state.shape, input=state
        )
    for weight in given.weights:
        made[weight.name] = _data(weight, given.tensors[weight.name].shape, names)
    for name, array in given.constants.items():
        made[name] = numbers(array, _DTYPES[str(array.dtype)])
    for each in _used(given):
        kind = given.tensors[each.output]
        line = _Line(emitter, _DTYPES[kind.dtype], kind.shape)
        operands = [made[name] for name in each.inputs]
        if each.op == UPDATE:
            own = {"state": variables[each.inputs[0]], "value": operands[1]}
            made[each.output] = emitter.act(UPDATE, line.dtype, line.shape, **own)
        else:
            made[each.output] = _EMIT[each.op](line, *operands, **each.facts)
    outputs = [_output(emitter, n, made[found]) for n, found in given.outputs.items()]
    return Function(
        given.name,
        tuple(variables[name] for name in given.inputs),
        tuple(states),
        tuple(emitter.calls),
        tuple(outputs),
    )


def _data(weight: lowered.Weight, shape: Sequence[int], names: Sequence[str]) -> Data:
    word = re.sub(r"\W", "_", names[weight.data], flags=re.ASCII)
    dtype = _DTYPES[weight.dtype]
    name = f"w{weight.data}_{word}_{dtype}"
    return Data(name, weight.data, dtype, tuple(shape))


def _output(emitter: Emitter, name: str, made: Tensor) -> Var:
    """Add an output of the function, in a dtype that MIL allows for outputs."""
    dtype = _OUTPUTS.get(made.dtype, made.dtype)
    if dtype == made.dtype:
        return emitter.act("identity", dtype, made.shape, name, x=made)
    return emitter.act("cast", dtype, made.shape, name, x=made, dtype=dtype)


def _used(given: lowered.Function) -> list[lowered.Operation]:
    """Return the operations from which outputs and states are computed, in order.

    A product whose second operand is a transposed tensor reads the tensor itself, and
    has the fact "turned".
    """
    makers = {each.output: each for each in given.operations}
    used, kept = {*given.outputs.values()}, list[lowered.Operation]()
    for each in reversed(given.operations):
        if each.output not in used and each.op != UPDATE:
            continue
        own = _turning(each, makers) if each.op == _P.MATMUL else each
        used.update(own.inputs)
        kept.append(own)
    return kept[::-1]


def _turning(
    product: lowered.Operation, makers: Mapping[str, lowered.Operation]
) -> lowered.Operation:
    """Return a product that also does the transpose of its second operand, if any."""
    one, other = product.inputs
    maker = makers.get(other)
    if maker is None or maker.op != _P.TRANSPOSE:
        return product
    order = maker.facts["order"]
    assert isinstance(order, tuple)
    rank = len(order)
    if order != (*range(rank - 2), rank - 1, rank - 2):
        return product
    return replace(product, inputs=(one, *maker.inputs), facts={"turned": 1})


@frozen
class _Line:
    """An operation that becomes calls.

    Attributes:
        emitter: collects the calls.
        dtype: MIL's dtype of the operation's result.
        shape: the shape of the result.
    """

    emitter: Emitter
    dtype: str
    shape: tuple[int, ...]

    def call(self, kind: str, **inputs: Input) -> Tensor:
        """Add the call that makes the operation's result."""
        return self.emitter.call(kind, self.dtype, self.shape, **inputs)


def _same(kind: str, line: _Line, x: Tensor) -> Tensor:
    return line.call(kind, x=x)


def _pair(kind: str, line: _Line, x: Tensor, y: Tensor) -> Tensor:
    one, other = _scalars(x, y)
    return line.call(kind, x=one, y=other)


def _scalars(x: Tensor, y: Tensor) -> tuple[Tensor | Number, Tensor | Number]:
    """Return two operands, of which at most one becomes a number without axes."""
    one = _scalar(x)
    return one, y if isinstance(one, Number) else _scalar(y)


def _scalar(x: Tensor) -> Tensor | Number:
    """Return a constant number [1] without axes, and other tensors unchanged."""
    if isinstance(x, Numbers) and x.shape == (1,) and x.dtype != "bool":
        return Number(x.array.item(), x.dtype)
    return x


def _cast(line: _Line, x: Tensor) -> Tensor:
    """Cast; a float constant of the program is stored in the result's dtype instead."""
    if isinstance(x, Data) and {x.dtype, line.dtype} == {"fp16", "fp32"}:
        stem = x.name.removesuffix(x.dtype)
        return Data(stem + line.dtype, x.data, line.dtype, x.shape)
    return line.call("cast", x=x, dtype=line.dtype)


def _reshape(line: _Line, x: Tensor) -> Tensor:
    return line.call("reshape", x=x, shape=line.shape)


def _transpose(line: _Line, x: Tensor, order: tuple[int, ...]) -> Tensor:
    return line.call("transpose", x=x, perm=order)


def _slice(line: _Line, x: Tensor, axis: int, start: int, end: int, by: int) -> Tensor:
    begins, ends, strides = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    begins[axis], ends[axis], strides[axis] = start, end, by
    bounds = {"begin": begins, "end": ends, "stride": strides}
    return line.call(
        "slice_by_index", x=x, **{name: tuple(each) for name, each in bounds.items()}
    )


def _spread(line: _Line, x: Tensor) -> Tensor:
    """Repeat a tensor along axes of size 1, and along new leading axes."""
    wide = (*(1,) * (len(line.shape) - len(x.shape)), *x.shape)
    if wide != x.shape:
        x = line.emitter.call("reshape", x.dtype, wide, x=x, shape=wide)
    if wide == line.shape:
        return x
    times = tuple(a // b for a, b in zip(line.shape, wide, strict=True))
    return line.emitter.call("tile", x.dtype, line.shape, x=x, reps=times)


def _concat(line: _Line, *parts: Tensor, axis: int) -> Tensor:
    return line.call("concat", values=parts, axis=axis)


def _where(line: _Line, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Select elements; MIL infers the shape of the result from `x` and `y` alone."""
    one, other = (
        each if isinstance(each, Number) else _spread(line, each)
        for each in _scalars(x, y)
    )
    return line.call("select", cond=_spread(line, condition), a=one, b=other)


def _rows(line: _Line, table: Tensor, index: Tensor) -> Tensor:
    return line.call("gather", x=table, indices=index, axis=0)


def _along(line: _Line, x: Tensor, index: Tensor, axis: int) -> Tensor:
    return line.call("gather_along_axis", x=x, indices=index, axis=axis)


def _write(line: _Line, x: Tensor, update: Tensor, at: Tensor, axis: int) -> Tensor:
    """Replace the rows of `x` along an axis from the index `at`, int32 [1], on."""
    emitter, shape, rows = line.emitter, x.shape, Number(update.shape[axis], "int32")
    end = emitter.call("add", "int32", (1,), x=at, y=rows)
    zeros = (0,) * len(shape)
    bounds = {}
    for name, sizes, middle in (("begin", zeros, at), ("end", shape, end)):
        first, last = (
            numbers(np.array(part), "int32")
            for part in (sizes[:axis], sizes[axis + 1 :])
        )
        bounds[name] = emitter.call(
            "concat", "int32", (len(shape),), values=(first, middle, last), axis=0
        )
    return line.call("slice_update", x=x, update=update, **bounds)


def _matmul(line: _Line, x: Tensor, y: Tensor, turned: int = 0) -> Tensor:
    return line.call("matmul", x=x, y=y, **({"transpose_y": True} if turned else {}))


def _reduced(kind: str, line: _Line, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return line.call(kind, x=x, axes=axes, keep_dims=True)


def _softmax(line: _Line, x: Tensor, axis: int) -> Tensor:
    return line.call("softmax", x=x, axis=axis)


def _gelu(line: _Line, x: Tensor, approximate: str) -> Tensor:
    mode = "EXACT" if approximate == "none" else "TANH_APPROXIMATION"
    return line.call("gelu", x=x, mode=mode)


def _log(line: _Line, x: Tensor) -> Tensor:
    """Return the logarithm of `x`; MIL adds an epsilon to `x`, so the epsilon is 0."""
    return line.call("log", x=x, epsilon=Number(0.0, line.dtype))


def _linear(line: _Line, x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    """Return x [..., in] times the transpose of a matrix [out, in], plus a bias [out].

    Without a bias, zeros are added; all such calls of one size share the zeros.
    """
    (added,) = bias or (numbers(np.zeros(line.shape[-1]), line.dtype),)
    return line.call("linear", x=x, weight=weight, bias=added)


def _layer_norm(line: _Line, x: Tensor, epsilon: float) -> Tensor:
    axes = (len(line.shape) - 1,)
    return line.call("layer_norm", x=x, axes=axes, epsilon=Number(epsilon, line.dtype))


def _widened(line: _Line, weight: Tensor, scale: Tensor) -> Tensor:
    """Multiply each row of an int8 matrix [rows, columns] by its scale [rows]."""
    assert isinstance(scale, Data)
    shape = (line.shape[0], 1)
    column = Data(f"{scale.name}_column", scale.data, scale.dtype, shape)
    return line.call("constexpr_blockwise_shift_scale", data=weight, scale=column)


_ALIKE: Final = (
    *(_P.ABS, _P.CEIL, _P.FLOOR, _P.EXP, _P.SQRT, _P.SIN, _P.COS, _P.TANH),
    *(_P.SIGMOID, _P.ERF, _P.RELU, _P.SILU),
)
_PAIRS: Final = {
    **{op: op.value for op in (_P.ADD, _P.SUB, _P.MUL, _P.MAXIMUM, _P.MINIMUM)},
    **{op: op.value for op in (_P.EQUAL, _P.NOT_EQUAL, _P.GREATER, _P.LESS)},
    **{op: op.value for op in (_P.GREATER_EQUAL, _P.LESS_EQUAL)},
    **{op: f"logical_{op}" for op in (_P.AND, _P.OR, _P.XOR)},
    _P.DIVIDE: "real_div",
    _P.POWER: "pow",
    _P.MODULO: "mod",
}
_EMIT: Final[Mapping[str, Callable[..., Tensor]]] = {
    **{op: partial(_same, op.value) for op in _ALIKE},
    **{op: partial(_pair, kind) for op, kind in _PAIRS.items()},
    **{
        op: partial(_reduced, f"reduce_{op}")
        for op in (_P.SUM, _P.MEAN, _P.MAX, _P.MIN)
    },
    _P.NOT: partial(_same, "logical_not"),
    _P.CAST: _cast,
    _P.RESHAPE: _reshape,
    _P.TRANSPOSE: _transpose,
    _P.SLICE: _slice,
    _P.BROADCAST: _spread,
    _P.CONCAT: _concat,
    _P.WHERE: _where,
    _P.ROWS: _rows,
    _P.ALONG: _along,
    _P.WRITE: _write,
    _P.MATMUL: _matmul,
    _P.SOFTMAX: _softmax,
    _P.GELU: _gelu,
    _P.LOG: _log,
    "linear": _linear,
    "layer_norm": _layer_norm,
    "widened": _widened,
}
