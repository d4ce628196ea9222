"""Collect the nodes of a model, with the shape of all that has a name."""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.arrays import Array
from kvc.runtime.delegates.qnn.model_file import (
    Attribute,
    Model,
    Node,
    Value,
    Weight,
)

Shape = tuple[int, ...]


class Emitter:
    """A model that is being made.

    Attributes:
        shapes: of inputs, weights, numbers and what nodes make, by name.
        made: names of what nodes make.
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
        **attributes: Attribute,
    ) -> str:
        """Add a node with one result, and return its name."""
        self._nodes.append(Node(op, tuple(inputs), (output,), attributes))
        self.shapes[output] = shape
        self.made.add(output)
        return output

    def input(self, name: str, shape: Shape) -> str:
        """Add an input of float16."""
        self._inputs.append(Value(name, "float16", shape))
        self.shapes[name] = shape
        return name

    def weight(self, name: str, shape: Shape) -> str:
        """Add a weight, once, whose place is not known yet."""
        self._weights[name] = Weight(name, "float16", shape, 0, 0)
        self.shapes[name] = shape
        return name

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
        """Add a reshape, unless nothing changes."""
        if self.shapes[x] == shape:
            return x
        sizes = self.integers(f"{output}_shape", shape)
        return self.node("Reshape", (x, sizes), output, shape)

    def part(self, x: str, output: str, axis: int, span: range) -> str:
        """Add a slice along an axis."""
        shape = self.shapes[x]
        if span == range(shape[axis]):
            return x
        ends = {"start": span.start, "end": span.stop, "axis": axis, "step": span.step}
        names = [self.integers(f"{output}_{k}", [n]) for k, n in ends.items()]
        made = (*shape[:axis], len(span), *shape[axis + 1 :])
        return self.node("Slice", (x, *names), output, made)

    def model(self, name: str, outputs: Sequence[str]) -> Model:
        """Return the model, with some results as its outputs."""
        return Model(
            name,
            tuple(self._nodes),
            tuple(self._inputs),
            tuple(Value(each, "float16", self.shapes[each]) for each in outputs),
            tuple(self._weights.values()),
            self._constants,
        )
