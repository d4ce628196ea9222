"""The values of a partition while its TOSA graph is made: names, grids, shapes.

In: the partition's code, grids, sizes, constants. Out: for each value, a tensor that
has the integers of the value's grid, or other integers that a translation asks for.
`lowering.py` lists the files that translate operators.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from kvc.runtime.delegates.ethosu.numbers import multiplier_of
from kvc.runtime.delegates.ethosu.tosa import Element, GraphBuilder, Shape
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.grids import Grid, Stored
from kvc.schema.errors import ScaleOutOfRange
from kvc.schema.graph import Constant, Graph, Ref
from kvc.schema.types import Affine

ELEMENTS: Final = {Stored.INT8: Element.INT8, Stored.INT16: Element.INT16}
_SHORT_BITS: Final = 15  # of multipliers of int48
_ONE: Final = (1 << 30, 30)  # a multiplier and a shift that are 1


class LoweredValues:
    """Maps values to tensors.

    Attributes:
        builder: builds the tensors.
        shared: names of tensors that several operators use, by a key of their content.
    """

    def __init__(
        self,
        graph: Graph,
        grids: Mapping[int, Grid],
        sizes: Mapping[str, int],
        constant: Callable[[int], Array],
    ) -> None:
        self._graph, self._grids, self._sizes = graph, grids, sizes
        self._constant = constant
        self._names: dict[int, str] = {}
        self.builder = GraphBuilder()
        self.shared: dict[object, str] = {}

    def take_inputs(self) -> None:
        """Create the TOSA graph's inputs; a value without a grid becomes int32."""
        for value in self._graph.inputs:
            grid = self._grids.get(value)
            element = Element.INT32 if grid is None else ELEMENTS[grid.stored]
            self._names[value] = self.builder.input(self.shape(value), element)

    def place(self, value: int, name: str) -> None:
        """Set the name of a value's tensor."""
        self._names[value] = name

    def name(self, value: int) -> str:
        """Return the name of a value's tensor; a constant is added on first use."""
        if value not in self._names:
            grid, content = self._grids[value], self.constant(value)
            whole = grid.integers(content.astype(np.float32))
            self._names[value] = self.builder.constant(whole, ELEMENTS[grid.stored])
        return self._names[value]

    def constant(self, value: int) -> Array:
        """Return the numbers of a value that is named data."""
        storage = self._graph.values[value].storage
        assert isinstance(storage, Constant), "an input, or made before it is read"
        return self._constant(storage.name)

    def grid(self, value: int) -> Grid:
        """Return the grid of a value."""
        return self._grids[value]

    def shape(self, value: int) -> Shape:
        """Return the sizes of a value."""
        return self._graph.values[value].type.shape(self._sizes)

    def argument(self, argument: object) -> object:
        """Return an argument with symbolic sizes evaluated."""
        if isinstance(argument, tuple):
            return tuple(self.argument(item) for item in argument)
        if isinstance(argument, Affine):
            return argument.evaluate(self._sizes)
        return argument

    def on_grid_of(self, value: int, other: int) -> str:
        """Return a value, converted to the grid of the value `other`."""
        name, x, y = self.name(value), self.grid(value), self.grid(other)
        if x == y:
            return name
        number, element = multiplier_of(x.scale / y.scale), ELEMENTS[y.stored]
        return self.builder.rescale(name, [number], (x.zero, y.zero), element)

    def without_zero(self, value: int, scale: float = 1.0, rank: int = 0) -> str:
        """Return a value as int32 whose integer 0 stands for 0, at a scale.

        Axes of size 1 are added in front until the tensor has `rank` axes.
        """
        name, shape = self.name(value), self.shape(value)
        ones = (1,) * (rank - len(shape))
        name, zero = self.builder.reshape(name, ones + shape), self.grid(value).zero
        return self.builder.rescale(
            name, [multiplier_of(scale)], (zero, 0), Element.INT32
        )

    def as_int16(self, value: int) -> str:
        """Return a value as int16 for a matrix product; its integer 0 stands for 0."""
        name, grid = self.name(value), self.grid(value)
        if grid.stored is Stored.INT16:
            return name
        return self.builder.rescale(name, [_ONE], (grid.zero, 0), Element.INT16)

    def reach(self, value: int) -> int:
        """Return the greatest absolute number that `as_int16` can give for a value."""
        return 255 if self.grid(value).stored is Stored.INT8 else 1 << 15

    def stored(
        self,
        made: str,
        result: int,
        scales: Sequence[float],
        reaches: Sequence[float] = (),
    ) -> str:
        """Rescale an int32 or int48 tensor to the grid of a result.

        Args:
            made: name of the tensor.
            result: id of the value that the tensor becomes.
            scales: the scale of the tensor, or a scale for each element of the last
                axis.
            reaches: for int48, the greatest absolute number for each scale.

        Raises:
            ScaleOutOfRange: RESCALE cannot express a scale.
        """
        grid = self.grid(result)
        numbers = [scale / grid.scale for scale in scales]
        zeros = (0, grid.zero)
        return self.rescaled(made, numbers, ELEMENTS[grid.stored], reaches, zeros)

    def rescaled(
        self,
        made: str,
        scales: Sequence[float],
        element: Element,
        reaches: Sequence[float] = (),
        zeros: tuple[int, int] = (0, 0),
    ) -> str:
        """Multiply an int32 or int48 tensor by numbers; see `stored` for `reaches`.

        Args:
            made: name of the tensor.
            scales: the number, or a number for each element of the last axis.
            element: the type of the result.
            reaches: for int48, the greatest absolute number for each scale.
            zeros: the zero points of the operand and the result.
        """
        long = self.builder.element(made) is Element.INT48
        for scale, reach in zip(scales, reaches, strict=bool(reaches)):
            if scale * reach > 1 << 31:  # undefined, even where it is clipped then
                raise ScaleOutOfRange(scale=scale, most=(1 << 31) / reach)
        numbers = [
            multiplier_of(scale, _SHORT_BITS) if long else multiplier_of(scale)
            for scale in scales
        ]
        return self.builder.rescale(made, numbers, zeros, element)


def ref(argument: object) -> int:
    """Return the value id of an argument."""
    assert isinstance(argument, Ref)
    return argument.value


def whole(argument: object) -> int:
    """Return an argument that is a number."""
    assert isinstance(argument, int)
    return argument
