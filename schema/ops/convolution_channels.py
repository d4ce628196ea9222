"""Which weights of convolutions are stored as int8, one scale for each output channel.

The compiler rounds such weights, and reports tell what rounding would save. An output
channel that reads one channel (depthwise convolutions, and first layers over a signal)
or has fewer than `LEAST` weights stays float32, and so does a transposed convolution of
several groups. There are few such weights, a scale costs more beside them, and nothing
evens out their errors.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

LEAST: Final = 32  # weights of an output channel that become int8
TRANSPOSED: Final = (
    "aten::conv_transpose1d",
    "aten::conv_transpose2d.input",
    "aten::conv_transpose3d.input",
)
TRANSPOSED_INT8: Final = "kvc::conv_transpose_w8"
# Operator over float32 weights -> the same over int8 weights and scales.
OVER_INT8: Final[Mapping[str, str]] = {
    "aten::convolution": "kvc::convolution_w8",
    "kvc::convolution": "kvc::convolution_w8",
    "kvc::pointwise_depthwise": "kvc::pointwise_depthwise_w8",
    **dict.fromkeys(TRANSPOSED, TRANSPOSED_INT8),
}
_GROUPS: Final = 6  # the index of a transposed convolution's groups


def channels_of(op: str, shape: Sequence[int]) -> tuple[int, int]:
    """Return the output channels of a weight of one group, and the weights of each.

    Args:
        op: one of `OVER_INT8`, or of its values.
        shape: [out, in, ...], or [in, out, ...] of a transposed convolution.
    """
    turned = op in TRANSPOSED or op == TRANSPOSED_INT8
    first, second, *taps = shape
    outputs, inputs = (second, first) if turned else (first, second)
    return outputs, inputs * prod(taps)


def becomes_int8(op: str, arguments: Sequence[object], shape: Sequence[int]) -> bool:
    """Tell whether a float32 weight is stored as int8 if a recipe asks for it.

    Args:
        op: one of `OVER_INT8`.
        arguments: those of the operator.
        shape: the shape of the weight.
    """
    turned = op in TRANSPOSED
    if turned and arguments[_GROUPS] != 1:
        return False
    return shape[0 if turned else 1] > 1 and channels_of(op, shape)[1] >= LEAST
