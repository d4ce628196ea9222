"""Collect the operations of a function; equal operations are added once.

In: a device, whose primitives are used; shortcuts that the device lacks are computed by
other primitives. Out: a `Function`. Floats are float32 or float16: an operation with
operands of both dtypes rounds its float32 operands to float16 (`Builder.alike`). The
name of a tensor that is not an input begins with "%", which no input's name has.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import pi, prod, sqrt
from typing import Final

import numpy as np

from kvc.runtime.delegates.lowering.function import (
    Fact,
    Function,
    Operation,
    Shape,
    State,
    Tensor,
    Weight,
)
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.primitives import TRUTHS, Primitive

_P = Primitive
FLOAT, HALF, INT, LONG, BOOL = "float32", "float16", "int32", "int64", "bool"
LEAST: Final = {  # the value of a hidden score
    FLOAT: float(np.finfo(np.float32).min),
    HALF: float(np.finfo(np.float16).min),
}


class NotTaken(Exception):
    """Code cannot be lowered for the device; the message has the reason."""


def check_fits(value: float, dtype: str) -> None:
    """Check that a number can be stored in `dtype`, if `dtype` is an integer dtype.

    Raises:
        NotTaken: the number is a fraction, infinite, NaN, or outside of the dtype.
    """
    if dtype in (INT, LONG):
        limits = np.iinfo(dtype)
        if value % 1 != 0:  # also if it is infinite or NaN
            raise NotTaken(f"{value} among integers")
        if not limits.min <= value <= limits.max:
            raise NotTaken(f"{value} has more than {limits.bits} bits")


class Builder:
    """A function under construction; its methods return the names of tensors."""

    def __init__(self, primitives: frozenset[Primitive]) -> None:
        """Begin a function for a device that has `primitives`."""
        self.tensors: dict[str, Tensor] = {}
        self.primitives = primitives
        self._inputs: list[str] = []
        self._weights: dict[str, Weight] = {}
        self._constants: dict[str, Array] = {}
        self._places: dict[int, str] = {}
        self._operations: dict[object, Operation] = {}

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        return self.tensors[name].shape

    def dtype(self, name: str) -> str:
        """Return the dtype of a tensor."""
        return self.tensors[name].dtype

    def input(self, name: str, dtype: str, shape: Shape) -> str:
        """Add an input, which the caller passes with each call."""
        self._inputs.append(name)
        self.tensors[name] = Tensor(dtype, shape)
        return name

    def weight(self, data: int, dtype: str, shape: Shape) -> str:
        """Add the named data with the id `data` as a constant, once for each dtype."""
        name = f"%w{data}_{dtype}"
        self._weights[name] = Weight(name, data, dtype)
        self.tensors[name] = Tensor(dtype, shape)
        return name

    def constant(self, array: Array) -> str:
        """Add a small constant, unless a constant with equal content was added."""
        content = sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        name = f"%c_{array.dtype}_{array.shape}_{content}"
        if name not in self._constants:
            self._constants[name] = array
            self.tensors[name] = Tensor(str(array.dtype), array.shape)
        return name

    def number(self, value: float, dtype: str) -> str:
        """Add a number as a constant [1].

        Raises:
            NotTaken: `dtype` is an integer dtype that cannot represent the number.
        """
        check_fits(value, dtype)
        with np.errstate(over="ignore"):
            return self.constant(np.array([value]).astype(dtype))

    def places(self, count: int) -> str:
        """Add the constant 0, 1, ..., count - 1, int32 [1, count]."""
        if count not in self._places:
            self._places[count] = self.constant(np.arange(count, dtype=np.int32)[None])
        return self._places[count]

    @property
    def count(self) -> int:
        """Return the number of operations."""
        return len(self._operations)

    def operation(
        self, op: str, inputs: Sequence[str], dtype: str, shape: Shape, **facts: Fact
    ) -> str:
        """Add an operation, unless an equal operation exists; return the result's name.

        A result without elements needs no operation, only a constant.
        """
        if 0 in shape:
            return self.constant(np.zeros(shape, dtype))
        key = (op, tuple(inputs), dtype, shape, tuple(sorted(facts.items())))
        if key not in self._operations:
            name = f"%t{len(self._operations)}"
            self._operations[key] = Operation(op, tuple(inputs), name, facts)
            self.tensors[name] = Tensor(dtype, shape)
        return self._operations[key].output

    def alike(self, *names: str) -> list[str]:
        """Convert tensors to a common dtype.

        Floats become float16 if any tensor is float16; integers become int64 if any is
        int64.
        """
        found = {self.dtype(name) for name in names}
        if HALF in found:
            return [self.cast(n, HALF) if self.dtype(n) == FLOAT else n for n in names]
        if found >= {INT, LONG}:
            return [self.cast(n, LONG) if self.dtype(n) == INT else n for n in names]
        return [*names]

    def cast(self, x: str, dtype: str) -> str:
        """Return a tensor cast to `dtype`; a constant is stored in `dtype` instead."""
        if self.dtype(x) == dtype:
            return x
        if x in self._constants:
            with np.errstate(over="ignore"):
                return self.constant(self._constants[x].astype(dtype))
        return self.operation(_P.CAST, (x,), dtype, self.shape(x))

    def unary(self, op: Primitive, x: str) -> str:
        """Apply an operation to each element."""
        if op not in self.primitives:
            return _INSTEAD[op](self, x)
        return self.operation(
            op, (x,), BOOL if op in TRUTHS else self.dtype(x), self.shape(x)
        )

    def binary(self, op: Primitive, x: str, y: str) -> str:
        """Apply an operation to pairs of elements, with broadcasting."""
        x, y = self.alike(x, y)
        if op not in self.primitives:
            return _INSTEAD[op](self, x, y)
        shape = np.broadcast_shapes(self.shape(x), self.shape(y))
        dtype = BOOL if op in TRUTHS else self.dtype(x)
        return self.operation(op, (x, y), dtype, shape)

    def with_number(self, op: Primitive, x: str, value: float) -> str:
        """Apply an operation to each element of a tensor and a number."""
        return self.binary(op, x, self.number(value, self.dtype(x)))

    def gelu(self, x: str, approximate: str) -> str:
        """Apply GELU to each element; `approximate` is "none" or "tanh"."""
        if _P.GELU in self.primitives:
            given = self.dtype(x), self.shape(x)
            return self.operation(_P.GELU, (x,), *given, approximate=approximate)
        mul, add = _P.MUL, _P.ADD
        if approximate == "none":
            inner = self.with_number(_P.DIVIDE, x, sqrt(2))
            inner = self.unary(_P.ERF, inner)
        else:
            cube = self.binary(
                mul, self.binary(mul, self.with_number(mul, x, 0.044715), x), x
            )
            inner = self.with_number(mul, self.binary(add, x, cube), sqrt(2 / pi))
            inner = self.unary(_P.TANH, inner)
        made = self.binary(mul, x, self.with_number(add, inner, 1))
        return self.with_number(_P.DIVIDE, made, 2)

    def softmax(self, x: str, axis: int) -> str:
        """Apply the softmax along an axis."""
        if _P.SOFTMAX in self.primitives:
            given = self.dtype(x), self.shape(x)
            return self.operation(_P.SOFTMAX, (x,), *given, axis=axis)
        most = self.reduce(_P.MAX, x, (axis,))
        raised = self.unary(_P.EXP, self.binary(_P.SUB, x, most))
        total = self.reduce(_P.SUM, raised, (axis,))
        return self.binary(_P.DIVIDE, raised, total)

    def where(self, condition: str, x: str, y: str) -> str:
        """Take elements of `x` where the bool `condition` is true, else of `y`."""
        x, y = self.alike(x, y)
        shape = np.broadcast_shapes(*map(self.shape, (condition, x, y)))
        return self.operation(_P.WHERE, (condition, x, y), self.dtype(x), shape)

    def reshape(self, x: str, shape: Shape) -> str:
        """Return the same elements in another shape."""
        if self.shape(x) == shape:
            return x
        return self.operation(_P.RESHAPE, (x,), self.dtype(x), shape)

    def transpose(self, x: str, order: Shape) -> str:
        """Return a tensor with the axes in another order."""
        if order == tuple(range(len(order))):
            return x
        shape = tuple(self.shape(x)[axis] for axis in order)
        return self.operation(_P.TRANSPOSE, (x,), self.dtype(x), shape, order=order)

    def turned(self, x: str) -> str:
        """Return a tensor with the last two axes swapped."""
        rank = len(self.shape(x))
        return self.transpose(x, (*range(rank - 2), rank - 1, rank - 2))

    def part(self, x: str, axis: int, span: range) -> str:
        """Return a slice along an axis."""
        shape = self.shape(x)
        if span == range(shape[axis]):
            return x
        made = (*shape[:axis], len(span), *shape[axis + 1 :])
        facts = {"axis": axis, "start": span.start, "end": span.stop, "by": span.step}
        return self.operation(_P.SLICE, (x,), self.dtype(x), made, **facts)

    def broadcast(self, x: str, shape: Shape) -> str:
        """Return a tensor whose axes of size 1 are repeated to a shape."""
        wide = (*(1,) * (len(shape) - len(self.shape(x))), *self.shape(x))
        x = self.reshape(x, wide)
        if wide == shape:
            return x
        return self.operation(_P.BROADCAST, (x,), self.dtype(x), shape)

    def concat(self, parts: Sequence[str], axis: int) -> str:
        """Concatenate tensors along an axis."""
        names = self.alike(*parts)
        if len(names) == 1:
            return names[0]
        shape = list(self.shape(names[0]))
        shape[axis] = sum(self.shape(name)[axis] for name in names)
        dtype = self.dtype(names[0])
        return self.operation(_P.CONCAT, names, dtype, tuple(shape), axis=axis)

    def product(self, x: str, y: str) -> str:
        """Multiply matrices, with broadcast batches.

        A vector `x` is a matrix of one row, a vector `y` a matrix of one column.
        """
        x, y = self.alike(x, y)
        if len(self.shape(x)) == 1:
            x = self.reshape(x, (1, *self.shape(x)))
        if len(self.shape(y)) == 1:
            y = self.reshape(y, (*self.shape(y), 1))
        one, other = self.shape(x), self.shape(y)
        batch = np.broadcast_shapes(one[:-2], other[:-2])
        shape, dtype = (*batch, one[-2], other[-1]), self.dtype(x)
        if not one[-1]:
            return self.constant(np.zeros(shape, dtype))
        return self.operation(_P.MATMUL, (x, y), dtype, shape)

    def reduce(self, op: Primitive, x: str, axes: Shape) -> str:
        """Reduce axes to size 1; without elements, a mean is NaN, others are 0."""
        shape = self.shape(x)
        made = tuple(1 if i in axes else n for i, n in enumerate(shape))
        if 0 in shape:
            nothing = np.nan if op is _P.MEAN else 0
            return self.constant(np.full(made, nothing, self.dtype(x)))
        if op in self.primitives:
            return self.operation(op, (x,), self.dtype(x), made, axes=axes)
        if op is _P.MEAN:
            total = self.reduce(_P.SUM, x, axes)
            count = prod(shape[axis] for axis in axes)
            return self.with_number(_P.MUL, total, 1 / count)
        assert op is _P.MIN, "lists name the reductions that an operator needs"
        turned = self.reduce(_P.MAX, self.unary(_P.NEG, x), axes)
        return self.unary(_P.NEG, turned)

    def rows(self, table: str, index: str) -> str:
        """Take rows of a table [rows, ...] by a tensor of indices, all in range.

        For a table without rows, the result is zeros.
        """
        made = (*self.shape(index), *self.shape(table)[1:])
        if not self.shape(table)[0]:
            return self.constant(np.zeros(made, self.dtype(table)))
        return self.operation(_P.ROWS, (table, index), self.dtype(table), made)

    def along(self, x: str, index: str, axis: int) -> str:
        """Take elements along an axis; all indices are in range.

        The index has the shape of the result, which differs from the shape of `x` only
        along the axis.
        """
        shape = self.shape(index)
        return self.operation(_P.ALONG, (x, index), self.dtype(x), shape, axis=axis)

    def function(
        self, name: str, after: Mapping[str, str], outputs: Mapping[str, str]
    ) -> Function:
        """Return the function.

        Args:
            name: the function's name.
            after: the name of the new content of each input that is a state, by the
                input's name.
            outputs: the tensor of each output, by the caller's name of the output.
        """
        short = {long: f"%c{i}" for i, long in enumerate(self._constants)}

        def named(tensor: str) -> str:
            return short.get(tensor, tensor)

        return Function(
            name,
            {named(tensor): known for tensor, known in self.tensors.items()},
            tuple(each for each in self._inputs if each not in after),
            tuple(State(each, named(made)) for each, made in after.items()),
            {output: named(made) for output, made in outputs.items()},
            tuple(self._weights.values()),
            {short[long]: array for long, array in self._constants.items()},
            tuple(
                Operation(
                    each.op, tuple(map(named, each.inputs)), each.output, each.facts
                )
                for each in self._operations.values()
            ),
        )


# How shortcuts are computed on devices without the shortcuts; see `SHORTCUTS`.


def _sigmoid(build: Builder, x: str) -> str:
    raised = build.unary(_P.EXP, build.unary(_P.NEG, x))
    return build.unary(_P.RECIPROCAL, build.with_number(_P.ADD, raised, 1))


def _modulo(build: Builder, x: str, y: str) -> str:
    """Compute x - floor(x / y) y in float32; integers up to 2 ** 24 give exact results.

    A device without DIVIDE multiplies by 1 / y, and the product can be below a whole
    quotient. Such a device computes floor((x + 1/2) / y), which is exact up to 2 ** 22.
    """
    dtype = build.dtype(x)
    one, other = (build.cast(each, FLOAT) for each in (x, y))
    divides = _P.DIVIDE in build.primitives
    above = one if divides else build.with_number(_P.SUB, one, -0.5)
    whole = build.unary(_P.FLOOR, build.binary(_P.DIVIDE, above, other))
    made = build.binary(_P.SUB, one, build.binary(_P.MUL, whole, other))
    return build.cast(made, dtype)


def _either(build: Builder, x: str, y: str) -> str:
    return build.binary(
        _P.OR, build.binary(_P.GREATER, x, y), build.binary(_P.EQUAL, x, y)
    )


def _negated(op: Primitive) -> Callable[..., str]:
    """Return a function that negates the operands and the result of `op`."""

    def apply(build: Builder, *given: str) -> str:
        turned = [build.unary(_P.NEG, each) for each in given]
        made = build.binary(op, *turned) if len(given) > 1 else build.unary(op, *turned)
        return build.unary(_P.NEG, made)

    return apply


_INSTEAD: Final[Mapping[Primitive, Callable[..., str]]] = {
    _P.SUB: lambda b, x, y: b.binary(_P.ADD, x, b.unary(_P.NEG, y)),
    _P.DIVIDE: lambda b, x, y: b.binary(_P.MUL, x, b.unary(_P.RECIPROCAL, y)),
    _P.MINIMUM: _negated(_P.MAXIMUM),
    _P.MODULO: _modulo,
    _P.NOT_EQUAL: lambda b, x, y: b.unary(_P.NOT, b.binary(_P.EQUAL, x, y)),
    _P.GREATER_EQUAL: _either,
    _P.LESS: lambda b, x, y: b.binary(_P.GREATER, y, x),
    _P.LESS_EQUAL: lambda b, x, y: b.binary(_P.GREATER_EQUAL, y, x),
    _P.XOR: lambda b, x, y: b.binary(_P.NOT_EQUAL, x, y),
    _P.NEG: lambda b, x: b.with_number(_P.MUL, x, -1),
    _P.ABS: lambda b, x: b.binary(_P.MAXIMUM, x, b.unary(_P.NEG, x)),
    _P.CEIL: _negated(_P.FLOOR),
    _P.RSQRT: lambda b, x: b.unary(_P.RECIPROCAL, b.unary(_P.SQRT, x)),
    _P.RECIPROCAL: lambda b, x: b.binary(_P.DIVIDE, b.number(1, b.dtype(x)), x),
    _P.SIGMOID: _sigmoid,
    _P.RELU: lambda b, x: b.with_number(_P.MAXIMUM, x, 0),
    _P.SILU: lambda b, x: b.binary(_P.MUL, x, b.unary(_P.SIGMOID, x)),
}
