"""Collect the nodes of a model, with the shapes of all named tensors."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.qnn.model_file import (
    Attribute,
    Model,
    Node,
    Value,
    Weight,
)
from kvc.runtime.delegates.qnn.ranges import Reach
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.grids import Grid

Shape = tuple[int, ...]


class Emitter(ABC):
    """A model under construction, of float16 or on integers.

    Methods that add nodes return the name of the result.

    Attributes:
        shapes: shapes of inputs, weights, numbers and node results, by name.
        made: names of node results.
    """

    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}
        self.made: set[str] = set()
        self._nodes: list[Node] = []
        self._inputs: list[Value] = []
        self._weights: dict[str, Weight] = {}
        self._constants: dict[str, Array] = {}

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        shape: Shape,
        *,
        reach: Reach | None = None,
        like: str = "",
        row_sum: float = math.inf,
        **attributes: Attribute,
    ) -> str:
        """Add a node with one result, and return the name of the result.

        Args:
            op: the node's operator.
            inputs: names of the operands.
            output: the name of the result.
            shape: shape of the result.
            reach: the least and the greatest number of the result. A model on integers
                needs this range if the operands do not tell the range.
            like: name of a tensor whose grid the result gets, in place of a grid
                for `reach`.
            row_sum: the greatest sum of absolute numbers in a row of a product's first
                operand; infinity if the sum is unknown.
            attributes: attributes of the operator.
        """
        return self._add(op, inputs, output, shape, attributes)

    def _add(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        shape: Shape,
        attributes: Mapping[str, Attribute],
    ) -> str:
        self._nodes.append(Node(op, tuple(inputs), (output,), attributes))
        self.shapes[output] = shape
        self.made.add(output)
        return output

    def kind(self, name: str) -> str:
        """Return the model's dtype of a tensor."""
        return "float16"

    def on_own_grid(self, name: str, output: str) -> str:
        """Return a tensor, converted to the grid that `output` must have, if any."""
        return name

    def reach(self, name: str) -> Reach | None:
        """Return None: the range of a float16 tensor is not known."""
        return None

    def reach_like(self, name: str) -> Reach:
        """Raise `NotTaken`: the range of a float16 tensor is not known."""
        raise NotTaken("float16 numbers have no known range")

    def has_grid(self, name: str) -> bool:
        """Tell whether a tensor must have a certain grid; never true in float16."""
        return False

    @abstractmethod
    def curve(self, kind: str, output: str, x: str, *more: str) -> str:
        """Add an activation or a softmax along the last axis.

        Args:
            kind: "exp", "sigmoid", "silu", "gelu", "gelu_tanh" or "softmax".
            output: the name of the result.
            x: the name of the operand.
            more: for a softmax, the name of a factor [..., 1] on each row, if any.

        Raises:
            NotTaken: a model on integers has no such activation.
        """

    def divided(self, x: str, number: float, output: str, shape: Shape) -> str:
        """Add a division of `x` by a number."""
        divisor = self.number(f"{output}_number", number)
        return self.node("Div", (x, divisor), output, shape)

    def input(self, name: str, shape: Shape, grid: Grid | None = None) -> str:
        """Add an input; only models on integers use `grid`."""
        self._inputs.append(Value(name, self.kind(name), shape))
        self.shapes[name] = shape
        return name

    def weight(self, name: str, shape: Shape, grid: Grid | None = None) -> str:
        """Add a weight; the writer of the file sets the weight's offset later."""
        self._weights[name] = Weight(name, self.kind(name), shape, 0, 0)
        self.shapes[name] = shape
        return name

    def channels(self, name: str, scale: str, shape: Shape) -> str:
        """Raise `NotTaken`: only models on integers have int8 matrices."""
        raise NotTaken("a matrix of int8 among numbers of float16")

    def number(self, name: str, value: float) -> str:
        """Add a number as a constant [1]."""
        self._constants[name] = np.array([value], np.float16)
        self.shapes[name] = (1,)
        return name

    def integers(self, name: str, values: Sequence[int]) -> str:
        """Add integers as a constant, such as a shape."""
        self._constants[name] = np.array(values, np.int64)
        return name

    def reshape(self, x: str, output: str, shape: Shape) -> str:
        """Add a reshape, unless the shape stays the same."""
        if self.shapes[x] == shape:
            return x
        sizes = self.integers(f"{output}_shape", shape)
        return self.node("Reshape", (x, sizes), output, shape)

    def part(self, x: str, output: str, axis: int, span: range) -> str:
        """Add a slice along an axis, unless `span` is the whole axis."""
        shape = self.shapes[x]
        if span == range(shape[axis]):
            return x
        ends = {"start": span.start, "end": span.stop, "axis": axis, "step": span.step}
        names = [self.integers(f"{output}_{k}", [n]) for k, n in ends.items()]
        made = (*shape[:axis], len(span), *shape[axis + 1 :])
        return self.node("Slice", (x, *names), output, made)

    def model(self, name: str, outputs: Sequence[str]) -> Model:
        """Return the model, whose outputs are the tensors with these names."""
        return Model(
            name,
            tuple(self._nodes),
            tuple(self._inputs),
            tuple(Value(n, self.kind(n), self.shapes[n]) for n in outputs),
            tuple(self._weights.values()),
            self._constants,
        )
