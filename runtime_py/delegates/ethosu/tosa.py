"""TOSA graphs as values: tensors, operators, and a builder for them.

They are of TOSA 1.0, its profile of integers. An operator's inputs are in the order of
the specification, with zero points, multipliers and shapes as constants among them.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import numpy as np

from kvc.runtime.arrays import Array
from kvc.schema.frozen import frozen

Shape = tuple[int, ...]
Attribute = int | bool | tuple[int, ...]


class Element(Enum):
    """The type of a tensor's elements; a SHAPE is a constant that says sizes."""

    INT8 = "int8"
    INT32 = "int32"
    SHAPE = "int64"

    @property
    def numpy(self) -> "np.dtype[np.generic]":
        """Return the numpy dtype."""
        return np.dtype(self.value)


@frozen
class Tensor:
    """A tensor of a graph.

    Attributes:
        name: unique in the graph.
        element: type of its elements.
        shape: of a SHAPE, how many sizes it says.
        content: of a constant, None of any other.
    """

    name: str
    element: Element
    shape: Shape
    content: Array | None = None


@frozen
class Operator:
    """One operation.

    Attributes:
        kind: by the specification's name.
        inputs, output: names of tensors.
        attributes: by the schema's names, all that it has.
    """

    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute]


@frozen
class TosaGraph:
    """A graph without control flow.

    Attributes:
        tensors: by name.
        operators: in running order; constants have none.
        inputs, outputs: names of tensors.
    """

    tensors: Mapping[str, Tensor]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


_INT32: Final = 5  # of the schema's enum DType
_NO_ZERO: Final = np.zeros(1, np.int8)


class GraphBuilder:
    """Makes a graph, operator by operator; a method returns the name of its result."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._operators: list[Operator] = []
        self._constants: dict[tuple[Element, Shape, bytes], str] = {}
        self._inputs: list[str] = []

    def graph(self, outputs: Sequence[str]) -> TosaGraph:
        """Return the graph; an output that is an input, or stands twice, is copied."""
        taken: list[str] = []
        for name in outputs:
            own = name in self._inputs or name in taken
            constant = self._tensors[name].content is not None
            taken.append(self._like("IDENTITY", (name,)) if own or constant else name)
        return TosaGraph(
            self._tensors, tuple(self._operators), tuple(self._inputs), tuple(taken)
        )

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        return self._tensors[name].shape

    def input(self, shape: Shape) -> str:
        """Add an input of int8."""
        name = self._add(f"input{len(self._inputs)}", Element.INT8, shape)
        self._inputs.append(name)
        return name

    def constant(self, content: Array, element: Element) -> str:
        """Add a constant; equal ones are one."""
        made = np.ascontiguousarray(content, element.numpy)
        key = (element, made.shape, made.tobytes())
        if key not in self._constants:
            name = f"constant{len(self._constants)}"
            self._constants[key] = self._add(name, element, made.shape, made)
        return self._constants[key]

    def rescale(
        self,
        value: str,
        numbers: Sequence[tuple[int, int]],
        zeros: tuple[int, int],
        element: Element,
    ) -> str:
        """Multiply by numbers of 2 ** -shift, one or one for each of the last axis.

        Args:
            value: int8 or int32.
            numbers: a multiplier and a shift each.
            zeros: the zero of the operand and that of the result.
            element: of the result.
        """
        multipliers, shifts = zip(*numbers, strict=True)
        given = self._tensors[value]
        inputs = (
            value,
            self.constant(np.array(multipliers), Element.INT32),
            self.constant(np.array(shifts), Element.INT8),
            self.constant(np.array([zeros[0]]), given.element),
            self.constant(np.array([zeros[1]]), element),
        )
        attributes: dict[str, Attribute] = {
            "scale32": True,
            "rounding_mode": 1,
            "per_channel": len(numbers) > 1,
            "input_unsigned": False,
            "output_unsigned": False,
        }
        return self._operate("RESCALE", inputs, given.shape, element, attributes)

    def arithmetic(self, kind: str, one: str, other: str) -> str:
        """ADD, SUB or MUL of int32, of equal rank; sizes of 1 are repeated."""
        shape = np.broadcast_shapes(self.shape(one), self.shape(other))
        inputs: tuple[str, ...] = (one, other)
        if kind == "MUL":
            inputs = (*inputs, self.constant(_NO_ZERO, Element.INT8))
        return self._operate(kind, inputs, shape, Element.INT32)

    def table(self, value: str, entries: Array) -> str:
        """Look int8 up among 256 entries, that of -128 first."""
        return self._like("TABLE", (value, self.constant(entries, Element.INT8)))

    def convolution(
        self,
        kind: str,
        value: str,
        weight: Array,
        bias: Array,
        zero: int,
        geometry: Mapping[str, Shape],
    ) -> str:
        """CONV2D or DEPTHWISE_CONV2D: int8 [n, height, width, channels] to int32.

        Args:
            kind: which.
            value: the operand.
            weight: int8 [out, height, width, in]; depthwise [height, width, in, 1].
            bias: int32 [out].
            zero: of the operand.
            geometry: `pad` top, bottom, left, right; `stride` and `dilation` y, x.
        """
        inputs = (
            value,
            self.constant(weight, Element.INT8),
            self.constant(bias, Element.INT32),
            self.constant(np.array([zero]), Element.INT8),
            self.constant(_NO_ZERO, Element.INT8),
        )
        n, *sizes, _ = self.shape(value)
        kernel = weight.shape[1:3] if kind == "CONV2D" else weight.shape[:2]
        shape = (n, *_slid(sizes, kernel, geometry), len(bias))
        attributes: dict[str, Attribute] = {
            **geometry,
            "local_bound": False,
            "acc_type": _INT32,
        }
        return self._operate(kind, inputs, shape, Element.INT32, attributes)

    def concat(self, values: Sequence[str], axis: int) -> str:
        """Join tensors along an axis."""
        shapes = [self.shape(value) for value in values]
        total = sum(shape[axis] for shape in shapes)
        shape = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
        element = self._tensors[values[0]].element
        return self._operate("CONCAT", tuple(values), shape, element, {"axis": axis})

    def slice(self, value: str, start: Shape, size: Shape) -> str:
        """Take a part of a tensor."""
        if size == self.shape(value):
            return value
        inputs = (value, self._sizes(start), self._sizes(size))
        return self._operate("SLICE", inputs, size, self._tensors[value].element)

    def reshape(self, value: str, shape: Shape) -> str:
        """Say other sizes of the same elements in order."""
        if shape == self.shape(value):
            return value
        inputs = (value, self._sizes(shape))
        return self._operate("RESHAPE", inputs, shape, self._tensors[value].element)

    def transpose(self, value: str, order: Shape) -> str:
        """Put axes in another order."""
        if order == tuple(range(len(order))):
            return value
        old = self.shape(value)
        shape = tuple(old[axis] for axis in order)
        element = self._tensors[value].element
        return self._operate("TRANSPOSE", (value,), shape, element, {"perms": order})

    def tile(self, value: str, shape: Shape) -> str:
        """Repeat axes of size 1."""
        if shape == self.shape(value):
            return value
        old = self.shape(value)
        times = tuple(new // size for new, size in zip(shape, old, strict=True))
        inputs = (value, self._sizes(times))
        return self._operate("TILE", inputs, shape, self._tensors[value].element)

    def _sizes(self, sizes: Shape) -> str:
        return self.constant(np.array(sizes, np.int64), Element.SHAPE)

    def _like(self, kind: str, inputs: tuple[str, ...]) -> str:
        given = self._tensors[inputs[0]]
        return self._operate(kind, inputs, given.shape, given.element)

    def _operate(
        self,
        kind: str,
        inputs: tuple[str, ...],
        shape: Shape,
        element: Element,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        name = self._add(f"value{len(self._operators)}", element, shape)
        self._operators.append(Operator(kind, inputs, name, attributes or {}))
        return name

    def _add(
        self, name: str, element: Element, shape: Shape, content: Array | None = None
    ) -> str:
        self._tensors[name] = Tensor(name, element, tuple(map(int, shape)), content)
        return name


def _slid(
    sizes: Sequence[int], kernel: Sequence[int], geometry: Mapping[str, Shape]
) -> Shape:
    """Return how often a kernel fits, along height and width: whole steps alone."""
    pad, found = geometry["pad"], []
    for axis, (size, reach) in enumerate(zip(sizes, kernel, strict=True)):
        room = size + pad[2 * axis] + pad[2 * axis + 1]
        left = room - geometry["dilation"][axis] * (reach - 1) - 1
        steps, rest = divmod(left, geometry["stride"][axis])
        assert not rest, "TOSA has no steps that are cut off"
        found.append(steps + 1)
    return tuple(found)
