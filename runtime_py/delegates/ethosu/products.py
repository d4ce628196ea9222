"""Linear layers and convolutions in TOSA: int8 weights, with a scale per channel.

In: an instruction with values on grids. Out: the tensor of its result. Sums of products
are int32 if the first operand is int8, and int48 if it is int16. TOSA's images are [n,
height, width, channels].
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from kvc.runtime.delegates.ethosu.functions import Doubles
from kvc.runtime.delegates.ethosu.lowered_values import LoweredValues, ref, whole
from kvc.runtime.delegates.ethosu.tosa import Shape
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.ethosu import MAX_BIAS
from kvc.schema.backends.grids import Integers, Stored, channels_rounded
from kvc.schema.graph import Instruction

Geometry = Mapping[str, Shape]  # `pad`, `stride` and `dilation`, as in TOSA


def linear(values: LoweredValues, step: Instruction) -> str:
    """Return a linear layer, as a convolution of images that are one pixel wide."""
    x, product = ref(step.arguments[0]), _Product(values, step)
    depth = product.weight.shape[1]
    rows = prod(values.shape(x)) // depth
    image = values.builder.reshape(values.name(x), (1, rows, 1, depth))
    geometry = _geometry((0, 0), (1, 1), (1, 1))
    turned = product.weight[:, None, None]
    made = product.made("CONV2D", image, turned, geometry)
    return values.builder.reshape(made, values.shape(step.results[0]))


def convolution(values: LoweredValues, step: Instruction) -> str:
    """Return a convolution over one axis or two."""
    builder, product = values.builder, _Product(values, step)
    arguments = [values.argument(one) for one in step.arguments]
    stride, padding, dilation = (_pair(arguments[i]) for i in (3, 4, 5))
    weight = product.weight
    line = weight.ndim == 3
    if line:
        weight = weight[:, :, None]
    image, geometry = _fitted(
        values,
        _as_image(values, values.name(ref(step.arguments[0])), line),
        weight.shape[2:],
        _geometry((0, padding[1]) if line else padding, stride, dilation),
    )
    depthwise = arguments[6] != 1
    turned = weight.transpose(0, 2, 3, 1)
    if depthwise:
        # [channels * m, 1, y, x] to [y, x, channels, m]
        shape = (builder.shape(image)[3], -1, *weight.shape[2:])
        turned = weight[:, 0].reshape(shape).transpose(2, 3, 0, 1)
    kind = "DEPTHWISE_CONV2D" if depthwise else "CONV2D"
    made = product.made(kind, image, turned, geometry)
    turned_back = builder.transpose(made, (0, 3, 1, 2))
    return builder.reshape(turned_back, values.shape(step.results[0]))


class _Product:
    """The weight and the bias of a linear layer or convolution, as integers.

    If the bias is large and weights are tiny, scales are increased so that the bias
    still fits an integer.

    Attributes:
        weight: int8, with axes in the model's order.
        scales: float32 [channels].
    """

    def __init__(self, values: LoweredValues, step: Instruction) -> None:
        self._values, self._step = values, step
        self._grid = values.grid(ref(step.arguments[0]))
        wide = self._grid.stored is Stored.INT16
        self._most_bias = MAX_BIAS << 8 if wide else MAX_BIAS
        weight = values.constant(ref(step.arguments[1])).astype(np.float32)
        least = np.abs(self._bias()) / (self._most_bias * self._grid.scale)
        self.weight, self.scales = channels_rounded(
            weight, 0, least_scale=least.astype(np.float32)
        )

    def made(self, kind: str, image: str, turned: Integers, geometry: Geometry) -> str:
        """Return the convolution of an image with the weight, plus the bias.

        Args:
            kind: name of TOSA's operator.
            image: name of the operand.
            turned: the weight, with its axes in TOSA's order.
            geometry: see `GraphBuilder.convolution`.
        """
        sums = self.scales.astype(np.float64) * self._grid.scale
        exact = np.rint(self._bias() / sums)
        bias = np.clip(exact, -self._most_bias, self._most_bias).astype(np.int64)
        bias = np.broadcast_to(bias, len(sums))
        made = self._values.builder.convolution(
            kind, image, turned, bias, self._grid.zero, geometry
        )
        scales = [float(one) for one in sums]
        result = self._step.results[0]
        return self._values.stored(made, result, scales, self._reaches(bias))

    def _reaches(self, bias: Array) -> Sequence[float]:
        """Return the greatest possible sum of each channel for int16; () for int8."""
        if self._grid.stored is not Stored.INT16:
            return ()
        each = np.abs(self.weight).reshape(len(self.weight), -1).sum(1, np.int64)
        return [float(one) for one in np.abs(bias) + each * (1 << 15)]

    def _bias(self) -> Doubles:
        """Return the bias, float64 [channels]; without a bias, a single 0."""
        given = self._step.arguments[2]
        if given is None:
            return np.zeros(1)
        return self._values.constant(ref(given)).astype(np.float64)


def _as_image(values: LoweredValues, name: str, line: bool) -> str:
    """Move the channels of a tensor [n, channels, (height,) width] to the last axis.

    `line` tells that the tensor has no height; an axis of size 1 is inserted.
    """
    shape = values.builder.shape(name)
    if line:
        name = values.builder.reshape(name, (*shape[:2], 1, shape[2]))
    return values.builder.transpose(name, (0, 2, 3, 1))


def _fitted(
    values: LoweredValues, image: str, kernel: Shape, geometry: Geometry
) -> tuple[str, Geometry]:
    """Cut off the rows and columns at an image's end that no step of the kernel reads.

    TOSA requires this. Padding is cut off first, then elements of the image.

    Returns:
        The name of the image, and the geometry with the remaining padding.
    """
    size, pad = list(values.builder.shape(image)), list(geometry["pad"])
    for axis in (0, 1):
        reach = geometry["dilation"][axis] * (kernel[axis] - 1) + 1
        room = size[axis + 1] + pad[2 * axis] + pad[2 * axis + 1]
        rest = (room - reach) % geometry["stride"][axis]
        padding = min(rest, pad[2 * axis + 1])
        pad[2 * axis + 1] -= padding
        size[axis + 1] -= rest - padding
    cut = values.builder.slice(image, (0, 0, 0, 0), tuple(size))
    return cut, {**geometry, "pad": tuple(pad)}


def _pair(argument: object) -> tuple[int, int]:
    """Return a convolution's argument for height and for width.

    If the argument is a single number, it is the number for the width.
    """
    assert isinstance(argument, tuple)
    numbers = [whole(one) for one in argument]
    return (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[-1])


def _geometry(
    padding: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> Geometry:
    (y, x) = padding
    return {"pad": (y, y, x, x), "stride": stride, "dilation": dilation}
