"""Collect the nodes of a model whose tensors are integers on grids.

In: the arguments of `Emitter`, and the grids of values. Out: nodes in ONNX's form of
integer computation: before each node, `DequantizeLinear` nodes widen the node's
operands, and after it a `QuantizeLinear` node rounds the node's result. Tensors are
uint16. In a product of two 16-bit tensors, the device uses only the upper 8 bits of the
second tensor, or 14 bits of an int16 tensor (measured on the emulator); products of 16
by 8 bits are exact. The second tensor is therefore split into two tensors of 8 bits.
The first tensor is multiplied by each of the two, and the products are added.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, TypeVar

import numpy as np

from kvc.runtime.delegates.lowering.builder import NotTaken
from kvc.runtime.delegates.qnn.emitting import Emitter, Shape
from kvc.runtime.delegates.qnn.model_file import Attribute, Weight
from kvc.runtime.delegates.qnn.ranges import REACHES, Reach, gated, reach_of
from kvc.schema.backends.grids import Grid, Stored, asymmetric
from kvc.schema.backends.qnn_fixed import LARGEST
from kvc.schema.calibration import Range

Known = TypeVar("Known", Grid, Reach)
_HALF: Final = 128.5  # steps: the greatest remainder after a multiple of 256
_MOVES: Final = ("Reshape", "Transpose", "Slice", "Expand")
# Grids that the device uses for these operators, whatever a model declares.
_FIXED: Final = {
    "Sigmoid": Grid(Stored.UINT16, 1 / 65536),
    "Softmax": Grid(Stored.UINT16, 1 / 65536),
    "Tanh": Grid(Stored.UINT16, 1 / 32768, 32768),
}


class FixedEmitter(Emitter):
    """An integer model under construction.

    Attributes:
        grids: grids of 16-bit tensors, by name.
    """

    def __init__(self, own: Mapping[str, Grid]) -> None:
        """Set the grids that the tensors in `own` must have, by name."""
        super().__init__()
        self.grids: dict[str, Grid] = {}
        self._own = own
        self._channels: dict[str, str] = {}
        self._halves: dict[str, tuple[str, str]] = {}
        self._written: dict[Grid, str] = {}
        self._numbers = count()

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
        """Add a node whose result is on a grid; see `Emitter.node`.

        Raises:
            NotTaken: there is no grid for the result.
        """
        own = self._own.get(like or output)
        if op == "MatMul" and inputs[1] not in self._channels:
            grid = own or grid_of(self._known(output, reach))
            return self._product(inputs, output, shape, grid, row_sum)
        grid, given = self._settled(op, inputs, output, own, reach)
        if own is None or own == grid:
            return self._between(op, given, output, shape, grid, attributes)
        made = self._between(op, given, f"{output}_raw", shape, grid, attributes)
        return self.converted(made, output, own)

    def _settled(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        own: Grid | None,
        reach: Reach | None,
    ) -> tuple[Grid, list[str]]:
        """Return the grid of a node's result, and the names of the node's inputs.

        The inputs of a `Concat` are first converted to this grid.

        Args:
            op: the node's operator.
            inputs: names of the operands.
            output: the name of the result.
            own: the grid that the result must have, or None.
            reach: the least and the greatest number of the result, or None.
        """
        if op in _MOVES:
            return self.grids[inputs[0]], [*inputs]
        if op == "Concat":
            known = {self.grids[name] for name in inputs}
            union = REACHES[op](*map(reach_of, known))
            grid = own or (known.pop() if len(known) == 1 else grid_of(union))
            return grid, [
                self.converted(name, f"{output}_in{number}", grid)
                for number, name in enumerate(inputs)
            ]
        if op in _FIXED:
            return _FIXED[op], [*inputs]
        if own is None and reach is None:
            if op not in REACHES:
                raise NotTaken(f"there is no grid for {output}")
            reach = REACHES[op](
                *(reach_of(self.grids[n]) for n in inputs if n in self.grids)
            )
        return own or grid_of(self._known(output, reach)), [*inputs]

    def _product(
        self,
        inputs: Sequence[str],
        output: str,
        shape: Shape,
        grid: Grid,
        row_sum: float,
    ) -> str:
        """Multiply by each 8-bit part of the second tensor, and add the products."""
        one, other = inputs
        high, low = self._halves_of(other)
        most = max(map(abs, reach_of(self.grids[one])))
        rest = min(most * self.shapes[one][-1], row_sum) * _HALF * self.grids[low].scale
        least, greatest = reach_of(grid)
        wide, narrow = grid_of((least - rest, greatest + rest)), grid_of((-rest, rest))
        parts = [
            self._between("MatMul", (one, half), f"{output}_{key}", shape, fine, {})
            for key, half, fine in (("high", high, wide), ("low", low, narrow))
        ]
        return self._between("Add", parts, output, shape, grid, {})

    def _halves_of(self, name: str) -> tuple[str, str]:
        """Return the names of two 8-bit tensors whose sum is the tensor `name`.

        The first tensor has multiples of 256 steps, the second the remainders.
        """
        if name in self._halves:
            return self._halves[name]
        step = max(map(abs, reach_of(self.grids[name]))) / (127 * 256 + 127)
        step = float(np.float32(step))
        upper = self.converted(name, f"{name}_high", Grid(Stored.INT8, 256 * step))
        wide = self.converted(upper, f"{name}_upper", Grid(Stored.UINT16, step, 32768))
        fine = grid_of((-_HALF * step, _HALF * step))
        shape = self.shapes[name]
        rest = self._between("Sub", (name, wide), f"{name}_rest", shape, fine, {})
        lower = self.converted(rest, f"{name}_low", Grid(Stored.INT8, step))
        self._halves[name] = upper, lower
        return upper, lower

    def _between(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        shape: Shape,
        grid: Grid,
        attributes: Mapping[str, Attribute],
    ) -> str:
        real = [self._real(name) for name in inputs]
        made = self._add(op, real, f"{output}_real", shape, attributes)
        return self._rounded(made, output, grid)

    def _real(self, name: str) -> str:
        """Add a node that dequantizes a tensor for one use, and return its result.

        A tensor without a grid, such as a list of sizes, is returned unchanged.
        """
        output, shape = f"{name}_r{next(self._numbers)}", self.shapes.get(name, ())
        if name in self._channels:
            inputs = [name, self._channels[name], f"{name}_zero"]
            return self._add("DequantizeLinear", inputs, output, shape, {"axis": 1})
        if name not in self.grids:
            return name
        inputs = [name, *self._scale_of(self.grids[name])]
        return self._add("DequantizeLinear", inputs, output, shape, {})

    def _rounded(self, real: str, output: str, grid: Grid) -> str:
        inputs = (real, *self._scale_of(grid))
        self.grids[output] = grid
        return self._add("QuantizeLinear", inputs, output, self.shapes[real], {})

    def _scale_of(self, grid: Grid) -> tuple[str, str]:
        """Return the names of the constants that are a grid's scale and zero point.

        The model stores the constants of each grid once.
        """
        name = self._written.setdefault(grid, f"grid{len(self._written)}")
        self._constants[f"{name}_scale"] = np.array(grid.scale, np.float32)
        self._constants[f"{name}_zero"] = np.array(grid.zero, kind_of(grid))
        return f"{name}_scale", f"{name}_zero"

    def converted(self, name: str, output: str, grid: Grid) -> str:
        """Return the tensor `name`, converted to `grid`; a new tensor is `output`."""
        if self.grids[name] == grid:
            return name
        return self._rounded(self._real(name), output, grid)

    def reach(self, name: str) -> Reach | None:
        """Return the least and the greatest number of a tensor."""
        return reach_of(self.grids[name])

    def reach_like(self, name: str) -> Reach:
        """Return the range of a tensor that is added later and whose grid is known."""
        return reach_of(self._known(name, self._own.get(name)))

    def on_own_grid(self, name: str, output: str) -> str:
        """Return a tensor, converted to the grid that `output` must have."""
        return self.converted(name, output, self._own[output])

    def has_grid(self, name: str) -> bool:
        """Tell whether a tensor is a value of the program, which has a known grid."""
        return name in self._own

    def curve(self, kind: str, output: str, x: str, *more: str) -> str:
        """Add an activation or a softmax; see `Emitter.curve`.

        The results of the device's own operators are exact to a few steps of a grid.
        """
        shape, reach = self.shapes[x], reach_of(self.grids[x])
        if kind == "sigmoid":
            return self.node("Sigmoid", (x,), output, shape)
        if kind == "silu":
            y = self.node("Sigmoid", (x,), f"{output}_sigmoid", shape)
            return self.node("Mul", (x, y), output, shape, reach=gated(kind, reach))
        if kind == "softmax":
            if not more:
                return self.node("Softmax", (x,), output, shape, axis=-1)
            y = self.node("Softmax", (x,), f"{output}_all", shape, axis=-1)
            return self.node("Mul", (y, *more), output, shape)
        if kind not in ("gelu", "gelu_tanh"):
            raise NotTaken(f"{kind} on integers")
        made, how = gated(kind, reach), "tanh" if kind == "gelu_tanh" else "none"
        return self.node("Gelu", (x,), output, shape, reach=made, approximate=how)

    def divided(self, x: str, number: float, output: str, shape: Shape) -> str:
        """Multiply `x` by a number's reciprocal, since the device divides inexactly.

        A result of the device's division is off by 12 steps of the grid.
        """
        factor = self.number(f"{output}_factor", 1 / number)
        return self.node("Mul", (x, factor), output, shape)

    def input(self, name: str, shape: Shape, grid: Grid | None = None) -> str:
        """Add an input on a grid."""
        self.grids[name] = self._known(name, grid)
        return super().input(name, shape)

    def weight(self, name: str, shape: Shape, grid: Grid | None = None) -> str:
        """Add a constant on a grid."""
        self.grids[name] = self._known(name, grid)
        return super().weight(name, shape)

    def channels(self, name: str, scale: str, shape: Shape) -> str:
        """Add an int8 matrix [in, out], and its scales, float32 [out]."""
        self._weights[name] = Weight(name, "int8", shape, 0, 0)
        self._weights[scale] = Weight(scale, "float32", shape[1:], 0, 0)
        self._constants[f"{name}_zero"] = np.zeros(shape[1], np.int8)
        self.shapes[name], self._channels[name] = shape, scale
        return name

    def number(self, name: str, value: float) -> str:
        """Add a number as a constant, on a grid whose range ends at this number."""
        grid = grid_of((min(value, 0.0), max(value, 0.0)))
        self.grids[name] = grid
        self._constants[name] = np.array([0 if value < 0 else 65535], np.uint16)
        if value == 0:
            self._constants[name][:] = grid.zero
        self.shapes[name] = (1,)
        return name

    def kind(self, name: str) -> str:
        """Return the dtype of a tensor's integers."""
        return kind_of(self.grids[name]).name

    def _known(self, name: str, found: Known | None) -> Known:
        if found is None:
            raise NotTaken(f"there is no grid for {name}")
        return found


def kind_of(grid: Grid) -> np.dtype[np.generic]:
    """Return the dtype of a grid's integers."""
    return np.dtype(grid.stored.name.lower())


def grid_of(reach: Reach) -> Grid:
    """Return the grid of uint16 that covers a range.

    Raises:
        NotTaken: an end of the range is not finite, or too large.
    """
    if not all(math.isfinite(each) and abs(each) < LARGEST**3 for each in reach):
        raise NotTaken(f"numbers from {reach[0]} to {reach[1]}")
    return asymmetric(Range(*reach), Stored.UINT16)
