"""Collect the steps of a function; equal steps are added once.

Floats are float32 or float16. A step with operands of both dtypes rounds its float32
operands to float16: see `Emitter.alike`. Names of tensors that are not inputs begin
with a character that no input's name has.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from kvc.runtime.delegates.coreai.function import (
    Fact,
    Function,
    Shape,
    State,
    Step,
    Tensor,
    Weight,
)
from kvc.runtime.memory.arrays import Array
from kvc.schema.frozen import frozen

FLOAT, HALF, INT, BOOL = "float32", "float16", "int32", "bool"
LEAST: Final = {  # the value of a hidden score
    FLOAT: float(np.finfo(np.float32).min),
    HALF: float(np.finfo(np.float16).min),
}
_TRUTHS: Final = frozenset({"equal", "not_equal", "greater", "and", "or", "not"})


class Emitter:
    """A function under construction; methods return names of tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._inputs: list[str] = []
        self._weights: dict[str, Weight] = {}
        self._constants: dict[str, Array] = {}
        self._steps: dict[object, Step] = {}

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
        """Add named data of the program as a constant, once for each dtype."""
        name = f"%w{data}_{dtype}"
        self._weights[name] = Weight(name, data, dtype)
        self.tensors[name] = Tensor(dtype, shape)
        return name

    def constant(self, array: Array) -> str:
        """Add a small constant, with a dtype that Core AI supports."""
        shape = "x".join(map(str, array.shape))
        numbers = array.reshape(-1).tolist()
        name = f"%c_{array.dtype}_{shape}_{numbers}"
        if name not in self._constants:
            self._constants[name] = array
            self.tensors[name] = Tensor(str(array.dtype), array.shape)
        return name

    def number(self, value: float, dtype: str) -> str:
        """Add a number as a constant [1]."""
        with np.errstate(over="ignore"):
            return self.constant(np.array([value]).astype(dtype))

    def places(self, count: int) -> str:
        """Add the constant 0, 1, ..., count - 1, int32 [1, count]."""
        return self.constant(np.arange(count, dtype=np.int32)[None])

    def step(
        self, op: str, inputs: Sequence[str], dtype: str, shape: Shape, **facts: Fact
    ) -> str:
        """Add a step, unless an equal one exists; return the name of its result."""
        key = (op, tuple(inputs), dtype, shape, tuple(sorted(facts.items())))
        if key not in self._steps:
            name = f"%t{len(self._steps)}"
            self._steps[key] = Step(op, tuple(inputs), name, facts)
            self.tensors[name] = Tensor(dtype, shape)
        return self._steps[key].output

    def alike(self, *names: str) -> list[str]:
        """Convert float tensors to a common dtype: float16 if any tensor is float16."""
        if not any(self.dtype(name) == HALF for name in names):
            return [*names]
        return [self.cast(n, HALF) if self.dtype(n) == FLOAT else n for n in names]

    def cast(self, x: str, dtype: str) -> str:
        """Return a tensor as another dtype."""
        if self.dtype(x) == dtype:
            return x
        return self.step("cast", (x,), dtype, self.shape(x))

    def unary(self, op: str, x: str, **facts: Fact) -> str:
        """Apply an operator to each element."""
        return self.step(op, (x,), self.dtype(x), self.shape(x), **facts)

    def binary(self, op: str, x: str, y: str) -> str:
        """Apply an operator to pairs of elements, with broadcasting."""
        x, y = self.alike(x, y)
        shape = np.broadcast_shapes(self.shape(x), self.shape(y))
        return self.step(op, (x, y), BOOL if op in _TRUTHS else self.dtype(x), shape)

    def with_number(self, op: str, x: str, value: float) -> str:
        """Apply an operator to each element and a number."""
        return self.binary(op, x, self.number(value, self.dtype(x)))

    def where(self, condition: str, x: str, y: str) -> str:
        """Select elements by a condition, with broadcasting."""
        x, y = self.alike(x, y)
        shape = np.broadcast_shapes(*map(self.shape, (condition, x, y)))
        return self.step("where", (condition, x, y), self.dtype(x), shape)

    def reshape(self, x: str, shape: Shape) -> str:
        """Return the same elements in another shape."""
        if self.shape(x) == shape:
            return x
        return self.step("reshape", (x,), self.dtype(x), shape)

    def transpose(self, x: str, order: Shape) -> str:
        """Return a tensor with its axes in another order."""
        if order == tuple(range(len(order))):
            return x
        shape = tuple(self.shape(x)[axis] for axis in order)
        return self.step("transpose", (x,), self.dtype(x), shape, order=order)

    def turned(self, x: str) -> str:
        """Return a tensor with its last two axes swapped."""
        rank = len(self.shape(x))
        return self.transpose(x, (*range(rank - 2), rank - 1, rank - 2))

    def part(self, x: str, axis: int, span: range) -> str:
        """Return a slice along an axis."""
        shape = self.shape(x)
        if span == range(shape[axis]):
            return x
        made = (*shape[:axis], len(span), *shape[axis + 1 :])
        facts = {"axis": axis, "start": span.start, "end": span.stop, "by": span.step}
        return self.step("slice", (x,), self.dtype(x), made, **facts)

    def broadcast(self, x: str, shape: Shape) -> str:
        """Return a tensor repeated to a shape."""
        wide = (*(1,) * (len(shape) - len(self.shape(x))), *self.shape(x))
        x = self.reshape(x, wide)
        if wide == shape:
            return x
        return self.step("broadcast", (x,), self.dtype(x), shape)

    def concat(self, parts: Sequence[str], axis: int) -> str:
        """Concatenate tensors along an axis."""
        names = self.alike(*parts)
        if len(names) == 1:
            return names[0]
        shape = list(self.shape(names[0]))
        shape[axis] = sum(self.shape(name)[axis] for name in names)
        return self.step("concat", names, self.dtype(names[0]), tuple(shape), axis=axis)

    def product(self, x: str, y: str) -> str:
        """Multiply matrices, with broadcast batches."""
        x, y = self.alike(x, y)
        one, other = self.shape(x), self.shape(y)
        batch = np.broadcast_shapes(one[:-2], other[:-2])
        return self.step("matmul", (x, y), self.dtype(x), (*batch, one[-2], other[-1]))

    def reduce(self, op: str, x: str, axes: Shape) -> str:
        """Reduce a tensor along `axes`; each reduced axis keeps size 1."""
        shape = self.shape(x)
        made = tuple(1 if i in axes else n for i, n in enumerate(shape))
        return self.step(op, (x,), self.dtype(x), made, axes=axes)

    def rows(self, table: str, index: str) -> str:
        """Take rows of a table; all indices are in range."""
        made = (*self.shape(index), *self.shape(table)[1:])
        return self.step("rows", (table, index), self.dtype(table), made)

    def function(
        self, name: str, after: Mapping[str, str], outputs: Mapping[str, str]
    ) -> Function:
        """Return the function that consists of the collected steps.

        Args:
            name: the function's name.
            after: for each input that is a state, by the input's name, the name of the
                tensor that is its new content.
            outputs: see `Function`.
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
                Step(step.op, tuple(map(named, step.inputs)), step.output, step.facts)
                for step in self._steps.values()
            ),
        )


# The instruction that is being translated, as emitters of operators get it.


Made = str | list[str]


@frozen
class Line:
    """An instruction that is being translated.

    Attributes:
        emitter: collects the steps of the function.
        read: takes an operand and a dtype, and returns the name of the operand's
            tensor; a float constant gets the dtype.
        shapes: the shapes of the instruction's results.
        dtypes: the Core AI dtypes of the instruction's results.
        half: whether products are computed in float16.
        note: records the valid range of an index tensor: name, minimum, and exclusive
            maximum.
    """

    emitter: Emitter
    read: Callable[[object, str], str]
    shapes: Sequence[Shape]
    dtypes: Sequence[str]
    half: bool
    note: Callable[[str, int, int], None]

    @property
    def shape(self) -> Shape:
        """Return the shape of the instruction's only result."""
        return self.shapes[0]

    @property
    def wanted(self) -> str:
        """Return the dtype in which products are computed."""
        return HALF if self.half else FLOAT

    def get(self, argument: object) -> str:
        """Return the name of the tensor that is an operand."""
        return self.read(argument, FLOAT)

    def product_of(self, argument: object) -> str:
        """Return the name of an operand in the dtype that products are computed in."""
        return self.emitter.cast(self.read(argument, self.wanted), self.wanted)
