"""Make a TOSA graph of a partition, at fixed sizes.

In: the partition's code, the grid of each value, its constants. Out: a graph of int8,
whose inputs are those of the partition, and whose outputs are the partition's and the
new contents of inputs that it writes. Weights are int8, symmetric, with a scale for
each output channel; sums are int32. TOSA's images are [n, height, width, channels].
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from kvc.runtime.arrays import Array
from kvc.runtime.delegates.ethosu.functions import FUNCTIONS, Doubles
from kvc.runtime.delegates.ethosu.numbers import multiplier_of, table_of
from kvc.runtime.delegates.ethosu.tosa import (
    Element,
    GraphBuilder,
    Shape,
    TosaGraph,
)
from kvc.schema.backends.ethosu import ADDITIONS, MAX_BIAS
from kvc.schema.backends.grids import Floats, Grid, Integers, channels_rounded
from kvc.schema.graph import Constant, Graph, Instruction, Ref
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Affine

Geometry = Mapping[str, Shape]  # `pad`, `stride` and `dilation`, as in TOSA

_ROOM = 20  # bits that sums of two grids are computed with, beside those of int8


def lower(
    graph: Graph,
    grids: Mapping[int, Grid],
    sizes: Mapping[str, int],
    constant: Callable[[int], Array],
) -> TosaGraph:
    """Return the TOSA graph of a partition.

    Args:
        graph: the partition's code, of what the backend takes alone.
        grids: of all its values.
        sizes: of the symbols.
        constant: returns named data.

    Raises:
        ScaleOutOfRange: two grids are too far apart.
    """
    return _Lowering(graph, grids, sizes, constant).run()


def results_of(graph: Graph) -> Sequence[int]:
    """Return the values that a TOSA graph gives, each once: outputs, new contents."""
    return list(dict.fromkeys((*graph.outputs, *written_inputs(graph).values())))


def written_inputs(graph: Graph) -> dict[int, int]:
    """Return which inputs are written: input -> the value that is its new content."""
    found = {}
    inputs = {*graph.inputs}
    views = _views(graph)
    for step in graph.instructions:
        for value in step.results:
            root = graph.root_of(value)
            if root in inputs and value not in views:
                found[root] = value
    return found


def _views(graph: Graph) -> set[int]:
    return {
        value
        for step in graph.instructions
        if OPS[step.op].aliasing is Aliasing.VIEW
        for value in step.results
    }


class _Lowering:
    """A graph while it is made; names of tensors by value."""

    def __init__(
        self,
        graph: Graph,
        grids: Mapping[int, Grid],
        sizes: Mapping[str, int],
        constant: Callable[[int], Array],
    ) -> None:
        self._graph, self._grids, self._sizes = graph, grids, sizes
        self._constant = constant
        self._builder = GraphBuilder()
        self._names: dict[int, str] = {}

    def run(self) -> TosaGraph:
        graph = self._graph
        for value in graph.inputs:
            self._names[value] = self._builder.input(self._shape(value))
        for step in graph.instructions:
            made = self._step(step)
            for value, name in zip(step.results, made, strict=True):
                self._names[value] = name
        return self._builder.graph([self._name(v) for v in results_of(graph)])

    def _step(self, step: Instruction) -> Sequence[str]:
        arguments = [self._argument(one) for one in step.arguments]
        (result, *_) = step.results
        if step.op in FUNCTIONS:
            return [self._function(step, result, arguments)]
        match step.op:
            case "aten::add.Tensor" | "aten::sub.Tensor":
                return [self._addition(step, result)]
            case "aten::mul.Tensor":
                return [self._product(step, result)]
            case "aten::linear":
                return [self._linear(step, result)]
            case "aten::convolution":
                return [self._convolution(step, result, arguments)]
            case "aten::cat":
                return [self._cat(result, step, arguments)]
            case "aten::copy":
                return [self._copy(result, _ref(step.arguments[1]))]
            case "aten::split_with_sizes":
                return self._split(step, arguments)
        return [self._view(step, result, arguments)]

    def _function(
        self, step: Instruction, result: int, arguments: Sequence[object]
    ) -> str:
        x = _ref(step.arguments[0])
        function = partial(_applied, FUNCTIONS[step.op], arguments[1:])
        entries = table_of(function, self._grids[x], self._grids[result])
        return self._builder.table(self._name(x), entries)

    def _addition(self, step: Instruction, result: int) -> str:
        """Add on a grid of int32 that both operands reach exactly enough."""
        one, other = (_ref(step.arguments[i]) for i in (0, 1))
        wide = 2 * max(self._grids[one].scale, self._grids[other].scale)
        step_size = wide / (1 << _ROOM)
        operands = [
            self._rescaled(
                value, self._grids[value].scale / step_size, len(self._shape(result))
            )
            for value in (one, other)
        ]
        kind = "ADD" if step.op == ADDITIONS[0] else "SUB"
        total = self._builder.arithmetic(kind, *operands)
        return self._stored(total, result, [step_size])

    def _product(self, step: Instruction, result: int) -> str:
        one, other = (_ref(step.arguments[i]) for i in (0, 1))
        rank = len(self._shape(result))
        operands = [self._rescaled(value, 1.0, rank) for value in (one, other)]
        made = self._builder.arithmetic("MUL", *operands)
        scale = self._grids[one].scale * self._grids[other].scale
        return self._stored(made, result, [scale])

    def _linear(self, step: Instruction, result: int) -> str:
        x, (weight, scales) = _ref(step.arguments[0]), self._channels(step)
        depth = weight.shape[1]
        rows = prod(self._shape(x)) // depth
        image = self._builder.reshape(self._name(x), (1, rows, 1, depth))
        geometry = _geometry((0, 0), (1, 1), (1, 1))
        turned = weight[:, None, None]
        made = self._conv("CONV2D", step, image, turned, scales, geometry)
        stored = self._stored_channels(made, step, result, scales)
        return self._builder.reshape(stored, self._shape(result))

    def _convolution(
        self, step: Instruction, result: int, arguments: Sequence[object]
    ) -> str:
        x, (weight, scales) = _ref(step.arguments[0]), self._channels(step)
        stride, padding, dilation = (_pair(arguments[i]) for i in (3, 4, 5))
        line = weight.ndim == 3
        if line:
            weight = weight[:, :, None]
        image = self._as_image(self._name(x), line)
        image, geometry = self._fitted(
            image,
            weight.shape[2:],
            _geometry((0, padding[1]) if line else padding, stride, dilation),
        )
        depthwise = arguments[6] != 1
        turned = weight.transpose(0, 2, 3, 1)
        if depthwise:
            # [channels * m, 1, y, x] to [y, x, channels, m]
            channels = self._builder.shape(image)[3]
            shape = (channels, -1, *weight.shape[2:])
            turned = weight[:, 0].reshape(shape).transpose(2, 3, 0, 1)
        kind = "DEPTHWISE_CONV2D" if depthwise else "CONV2D"
        made = self._conv(kind, step, image, turned, scales, geometry)
        stored = self._stored_channels(made, step, result, scales)
        turned_back = self._builder.transpose(stored, (0, 3, 1, 2))
        return self._builder.reshape(turned_back, self._shape(result))

    def _as_image(self, name: str, line: bool) -> str:
        """Return [n, channels, (height,) width] with the channels last."""
        shape = self._builder.shape(name)
        if line:
            name = self._builder.reshape(name, (*shape[:2], 1, shape[2]))
        return self._builder.transpose(name, (0, 2, 3, 1))

    def _fitted(
        self, image: str, kernel: Shape, geometry: Geometry
    ) -> tuple[str, Geometry]:
        """Leave out what no step of a convolution reaches, as TOSA demands.

        It is the end of an axis: first of its padding, then of the image.
        """
        size, pad = list(self._builder.shape(image)), list(geometry["pad"])
        for axis in (0, 1):
            reach = geometry["dilation"][axis] * (kernel[axis] - 1) + 1
            room = size[axis + 1] + pad[2 * axis] + pad[2 * axis + 1]
            rest = (room - reach) % geometry["stride"][axis]
            padding = min(rest, pad[2 * axis + 1])
            pad[2 * axis + 1] -= padding
            size[axis + 1] -= rest - padding
        cut = self._builder.slice(image, (0, 0, 0, 0), tuple(size))
        return cut, {**geometry, "pad": tuple(pad)}

    def _conv(
        self,
        kind: str,
        step: Instruction,
        image: str,
        weight: Array,
        scales: Floats,
        geometry: Geometry,
    ) -> str:
        """Convolve with int8 weights that are in TOSA's order already."""
        grid, exact = self._grids[_ref(step.arguments[0])], self._bias(step)
        bias = np.rint(exact / (scales.astype(np.float64) * grid.scale))
        whole = np.clip(bias, -MAX_BIAS, MAX_BIAS).astype(np.int32)
        return self._builder.convolution(
            kind,
            image,
            weight,
            np.broadcast_to(whole, len(scales)),
            grid.zero,
            geometry,
        )

    def _channels(self, step: Instruction) -> tuple[Integers, Floats]:
        """Return the weight of a product as integers, and the scale of each channel.

        The axes are in the model's order. Beside a large bias, tiny weights have a
        scale so great that the bias is an integer of 31 bits.
        """
        weight = self._constant_of(_ref(step.arguments[1])).astype(np.float32)
        scale = self._grids[_ref(step.arguments[0])].scale
        least = np.abs(self._bias(step)) / (MAX_BIAS * scale)
        return channels_rounded(weight, 0, least_scale=least.astype(np.float32))

    def _bias(self, step: Instruction) -> Doubles:
        """Return the bias of a product, float64 [channels], or [1] of 0 for none."""
        given = step.arguments[2]
        if given is None:
            return np.zeros(1)
        return self._constant_of(_ref(given)).astype(np.float64)

    def _stored_channels(
        self, made: str, step: Instruction, result: int, scales: Floats
    ) -> str:
        """Bring sums of products, whose last axis is channels, to the result's grid."""
        x = self._grids[_ref(step.arguments[0])]
        return self._stored(made, result, [float(one) * x.scale for one in scales])

    def _cat(self, result: int, step: Instruction, arguments: Sequence[object]) -> str:
        values = step.arguments[0]
        assert isinstance(values, tuple)
        axis = _int(arguments[1]) % len(self._shape(result))
        parts = [self._copy(result, _ref(one)) for one in values]
        return self._builder.concat(parts, axis)

    def _copy(self, result: int, value: int) -> str:
        """Return a value on the grid of another, of the same shape or repeated."""
        name, x, y = self._name(value), self._grids[value], self._grids[result]
        if (x.scale, x.zero) == (y.scale, y.zero):
            return name
        number = multiplier_of(x.scale / y.scale)
        return self._builder.rescale(name, [number], (x.zero, y.zero), Element.INT8)

    def _split(self, step: Instruction, arguments: Sequence[object]) -> Sequence[str]:
        x, axis = _ref(step.arguments[0]), _int(arguments[2])
        made, begin = [], 0
        for value in step.results:
            shape = self._shape(value)
            start = [0] * len(shape)
            start[axis % len(shape)] = begin
            begin += shape[axis % len(shape)]
            made.append(self._builder.slice(self._name(x), tuple(start), shape))
        return made

    def _view(self, step: Instruction, result: int, arguments: Sequence[object]) -> str:
        """Show the elements of a value in another way; it is on the same grid."""
        x = _ref(step.arguments[0])
        name, old, shape = self._copy(result, x), self._shape(x), self._shape(result)
        match step.op:
            case "aten::transpose.int":
                order = list(range(len(old)))
                if old:
                    one, other = _int(arguments[1]), _int(arguments[2])
                    order[one], order[other] = order[other], order[one]
                return self._builder.transpose(name, tuple(order))
            case "aten::permute":
                wanted = arguments[1]
                assert isinstance(wanted, tuple)
                turned = tuple(_int(axis) % len(old) for axis in wanted)
                return self._builder.transpose(name, turned)
            case "aten::expand":
                ones = (1,) * (len(shape) - len(old))
                return self._builder.tile(
                    self._builder.reshape(name, (*ones, *old)), shape
                )
            case "aten::slice.Tensor" | "aten::select.int":
                return self._builder.reshape(
                    self._part(step, name, old, arguments), shape
                )
        return self._builder.reshape(name, shape)

    def _part(
        self, step: Instruction, name: str, old: Shape, arguments: Sequence[object]
    ) -> str:
        axis = _int(arguments[1]) % len(old)
        if step.op == "aten::select.int":
            begin = _int(arguments[2]) % old[axis]
            end = begin + 1
        else:
            bounds = (None if a is None else _int(a) for a in arguments[2:4])
            begin, end, _ = slice(*bounds).indices(old[axis])
        start, size = [0] * len(old), list(old)
        start[axis], size[axis] = begin, end - begin
        return self._builder.slice(name, tuple(start), tuple(size))

    def _rescaled(self, value: int, scale: float, rank: int) -> str:
        """Return int32 without a zero, with axes of 1 before its own up to a rank."""
        shape = self._shape(value)
        name = self._builder.reshape(
            self._name(value), (1,) * (rank - len(shape)) + shape
        )
        zero = self._grids[value].zero
        return self._builder.rescale(
            name, [multiplier_of(scale)], (zero, 0), Element.INT32
        )

    def _stored(self, made: str, result: int, scales: Sequence[float]) -> str:
        """Bring int32 of some scales to the grid of a result."""
        grid = self._grids[result]
        numbers = [multiplier_of(scale / grid.scale) for scale in scales]
        return self._builder.rescale(made, numbers, (0, grid.zero), Element.INT8)

    def _name(self, value: int) -> str:
        """Return the tensor of a value; that of a constant is made on first need."""
        if value not in self._names:
            content = self._constant_of(value)
            whole = self._grids[value].integers(content.astype(np.float32))
            self._names[value] = self._builder.constant(whole, Element.INT8)
        return self._names[value]

    def _constant_of(self, value: int) -> Array:
        storage = self._graph.values[value].storage
        assert isinstance(storage, Constant), "an input, or made before it is read"
        return self._constant(storage.name)

    def _shape(self, value: int) -> Shape:
        return self._graph.values[value].type.shape(self._sizes)

    def _argument(self, argument: object) -> object:
        if isinstance(argument, tuple):
            return tuple(self._argument(item) for item in argument)
        if isinstance(argument, Affine):
            return argument.evaluate(self._sizes)
        return argument


def _applied(
    function: Callable[..., Doubles], others: Sequence[object], x: Doubles
) -> Doubles:
    return function(x, *others)


def _ref(argument: object) -> int:
    assert isinstance(argument, Ref)
    return argument.value


def _int(argument: object) -> int:
    assert isinstance(argument, int)
    return argument


def _pair(argument: object) -> tuple[int, int]:
    """Return what is said of height and width; of a line, 1 or nothing of height."""
    assert isinstance(argument, tuple)
    numbers = [_int(one) for one in argument]
    return (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[-1])


def _geometry(
    padding: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> Geometry:
    (y, x) = padding
    return {"pad": (y, y, x, x), "stride": stride, "dilation": dilation}
