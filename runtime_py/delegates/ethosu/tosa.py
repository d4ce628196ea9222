"""TOSA graphs as values: tensors, operators, and a graph builder.

Graphs use the integer profile of TOSA 1.0 with the extension EXT-INT16. An operator's
inputs are in the order of the specification; zero points, multipliers and shapes are
inputs too, which are constants.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.schema.frozen import frozen

Shape = tuple[int, ...]
Attribute = int | bool | tuple[int, ...]


class Element(Enum):
    """The type of a tensor's elements; SHAPE is that of a constant of sizes."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT48 = "int48"  # sums of products of int16
    SHAPE = "shape"

    @property
    def numpy(self) -> "np.dtype[np.generic]":
        """Return the numpy dtype that holds the elements."""
        wide = self in (Element.INT48, Element.SHAPE)
        return np.dtype("int64" if wide else self.value)


@frozen
class Tensor:
    """A tensor of a graph.

    Attributes:
        name: name of the tensor, unique in the graph.
        element: the type of the tensor's elements.
        shape: the tensor's shape; for a SHAPE, the number of sizes.
        content: the elements of a constant, None for other tensors.
    """

    name: str
    element: Element
    shape: Shape
    content: Array | None = None


@frozen
class Operator:
    """One operation.

    Attributes:
        kind: the specification's name of the operator.
        inputs, output: names of tensors.
        attributes: all attributes of the operator, by their names in `tosa.fbs`.
    """

    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute]


@frozen
class TosaGraph:
    """A graph without control flow.

    Attributes:
        tensors: all tensors, by name.
        operators: the operators in running order; constants need no operator.
        inputs, outputs: names of tensors.
    """

    tensors: Mapping[str, Tensor]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


_ACCUMULATORS: Final = {Element.INT8: Element.INT32, Element.INT16: Element.INT48}
_NUMBERS: Final = {Element.INT32: 5, Element.INT48: 6}  # of the schema's enum DType
_IGNORE_NAN: Final = 2  # of its enum NanPropagationMode: integers have none
_NO_ZERO: Final = np.zeros(1, np.int8)


class GraphBuilder:
    """Builds a graph, operator by operator; methods return the names of results."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._operators: list[Operator] = []
        self._constants: dict[tuple[Element, Shape, bytes], str] = {}
        self._inputs: list[str] = []

    def graph(self, outputs: Sequence[str]) -> TosaGraph:
        """Return the graph; an output that is an input or repeated becomes a copy."""
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

    def element(self, name: str) -> Element:
        """Return the type of a tensor's elements."""
        return self._tensors[name].element

    def input(self, shape: Shape, element: Element) -> str:
        """Add an input."""
        name = self._add(f"input{len(self._inputs)}", element, shape)
        self._inputs.append(name)
        return name

    def constant(self, content: Array, element: Element) -> str:
        """Add a constant, unless an equal one exists."""
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
        """Multiply a tensor by one number, or by one number per channel (last axis).

        Args:
            value: a tensor of any integer type.
            numbers: the numbers multiplier * 2 ** -shift, each as (multiplier, shift);
                multipliers of int48 fit int16.
            zeros: the zero points of the operand and the result.
            element: the type of the result.
        """
        multipliers, shifts = zip(*numbers, strict=True)
        given = self._tensors[value]
        long = given.element is Element.INT48
        inputs = (
            value,
            self.constant(
                np.array(multipliers), Element.INT16 if long else Element.INT32
            ),
            self.constant(np.array(shifts), Element.INT8),
            self.constant(np.array([zeros[0]]), given.element),
            self.constant(np.array([zeros[1]]), element),
        )
        attributes: dict[str, Attribute] = {
            "scale32": not long,
            "rounding_mode": 1,
            "per_channel": len(numbers) > 1,
            "input_unsigned": False,
            "output_unsigned": False,
        }
        return self._operate("RESCALE", inputs, given.shape, element, attributes)

    def arithmetic(self, kind: str, one: str, other: str) -> str:
        """Apply an operator to two int32 tensors of equal rank; size 1 broadcasts.

        Args:
            kind: ADD, SUB, MAXIMUM, MINIMUM, LOGICAL_LEFT_SHIFT, or
                ARITHMETIC_RIGHT_SHIFT, which rounds down.
            one: the first operand.
            other: the second operand.
        """
        attributes: dict[str, Attribute] = {}
        if kind == "ARITHMETIC_RIGHT_SHIFT":
            attributes = {"round": False}
        elif kind in ("MAXIMUM", "MINIMUM"):
            attributes = {"nan_mode": _IGNORE_NAN}
        shape = np.broadcast_shapes(self.shape(one), self.shape(other))
        return self._operate(kind, (one, other), shape, Element.INT32, attributes)

    def with_number(self, kind: str, one: str, number: int) -> str:
        """Apply `arithmetic` to an int32 tensor and a number."""
        ones = (1,) * len(self.shape(one))
        constant = self.constant(np.full(ones, number), Element.INT32)
        return self.arithmetic(kind, one, constant)

    def multiply(self, one: str, other: str, shift: int = 0) -> str:
        """Return one * other * 2 ** -shift, int32, with halves rounded up.

        Axes of size 1 broadcast.
        """
        shape = np.broadcast_shapes(self.shape(one), self.shape(other))
        inputs = (one, other, self.constant(np.array([shift]), Element.INT8))
        return self._operate("MUL", inputs, shape, Element.INT32)

    def leading_zeros(self, value: str) -> str:
        """Count the leading zero bits of each int32."""
        return self._like("CLZ", (value,))

    def reduce(self, kind: str, value: str) -> str:
        """Reduce the last axis of int32 to size 1, by REDUCE_MAX or REDUCE_SUM."""
        axis = len(self.shape(value)) - 1
        attributes: dict[str, Attribute] = {"axis": axis}
        if kind == "REDUCE_MAX":
            attributes["nan_mode"] = _IGNORE_NAN
        shape = (*self.shape(value)[:-1], 1)
        return self._operate(kind, (value,), shape, Element.INT32, attributes)

    def matmul(self, one: str, other: str) -> str:
        """Multiply int16 matrices [n, a, b] and [n, b, c] to int48 [n, a, c].

        Zero points are 0.
        """
        zero = self.constant(np.zeros(1), Element.INT16)
        (n, rows, _), (_, _, columns) = self.shape(one), self.shape(other)
        inputs = (one, other, zero, zero)
        return self._operate("MATMUL", inputs, (n, rows, columns), Element.INT48)

    def scatter(self, values: str, indices: str, rows: str) -> str:
        """Write rows [n, w, c] to values [n, k, c], at indices int32 [n, w]."""
        inputs = (values, indices, rows)
        shape = self.shape(values)
        return self._operate("SCATTER", inputs, shape, self.element(values))

    def table(self, value: str, entries: Array) -> str:
        """Look the elements of an int8 or int16 tensor up in a table.

        An int8 is looked up in 256 entries of int8; the first is for -128. For an
        int16, the table has 513 entries, for arguments that are multiples of 128. The
        result is int32: 128 times the linear interpolation between two entries.
        """
        element = self.element(value)
        inputs = (value, self.constant(entries, element))
        made = Element.INT8 if element is Element.INT8 else Element.INT32
        return self._operate("TABLE", inputs, self.shape(value), made)

    def convolution(
        self,
        kind: str,
        value: str,
        weight: Array,
        bias: Array,
        zero: int,
        geometry: Mapping[str, Shape],
    ) -> str:
        """Convolve [n, height, width, channels] by CONV2D or DEPTHWISE_CONV2D.

        Sums are int32 for int8 operands, int48 for int16 operands.

        Args:
            kind: name of the operator.
            value: the operand.
            weight: int8 [out, height, width, in]; for DEPTHWISE_CONV2D, [height, width,
                in, 1].
            bias: [out], of the type of the sums.
            zero: the zero point of the operand.
            geometry: `pad` top, bottom, left, right; `stride` and `dilation` y, x.
        """
        element = self.element(value)
        made = _ACCUMULATORS[element]
        inputs = (
            value,
            self.constant(weight, Element.INT8),
            self.constant(bias, made),
            self.constant(np.array([zero]), element),
            self.constant(_NO_ZERO, Element.INT8),
        )
        n, *sizes, _ = self.shape(value)
        kernel = weight.shape[1:3] if kind == "CONV2D" else weight.shape[:2]
        shape = (n, *_slid(sizes, kernel, geometry), len(bias))
        attributes: dict[str, Attribute] = {
            **geometry,
            "local_bound": False,
            "acc_type": _NUMBERS[made],
        }
        return self._operate(kind, inputs, shape, made, attributes)

    def concat(self, values: Sequence[str], axis: int) -> str:
        """Concatenate tensors along an axis."""
        shapes = [self.shape(value) for value in values]
        total = sum(shape[axis] for shape in shapes)
        shape = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])
        element = self._tensors[values[0]].element
        return self._operate("CONCAT", tuple(values), shape, element, {"axis": axis})

    def slice(self, value: str, start: Shape, size: Shape) -> str:
        """Take a slice of a tensor."""
        if size == self.shape(value):
            return value
        inputs = (value, self._sizes(start), self._sizes(size))
        return self._operate("SLICE", inputs, size, self._tensors[value].element)

    def reshape(self, value: str, shape: Shape) -> str:
        """Reshape a tensor; the elements keep their order."""
        if shape == self.shape(value):
            return value
        inputs = (value, self._sizes(shape))
        return self._operate("RESHAPE", inputs, shape, self._tensors[value].element)

    def transpose(self, value: str, order: Shape) -> str:
        """Put a tensor's axes in another order."""
        if order == tuple(range(len(order))):
            return value
        old = self.shape(value)
        shape = tuple(old[axis] for axis in order)
        element = self._tensors[value].element
        return self._operate("TRANSPOSE", (value,), shape, element, {"perms": order})

    def tile(self, value: str, shape: Shape) -> str:
        """Repeat a tensor along axes of size 1, to a shape."""
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
    """Return how many positions a kernel has along height and along width.

    The kernel's last position must end exactly at the end of the padded image.
    """
    pad, found = geometry["pad"], []
    for axis, (size, reach) in enumerate(zip(sizes, kernel, strict=True)):
        room = size + pad[2 * axis] + pad[2 * axis + 1]
        left = room - geometry["dilation"][axis] * (reach - 1) - 1
        steps, rest = divmod(left, geometry["stride"][axis])
        assert not rest, "TOSA allows no partial step"
        found.append(steps + 1)
    return tuple(found)
