"""Support list of the backend `cpu` for convolutions."""

from typing import Final

from kvc.schema.backends.cpu_rules import FLOAT32, NUMERIC, rules
from kvc.schema.backends.operands import (
    Arguments,
    Results,
    Rule,
    operand,
    unknown_dtypes,
)
from kvc.schema.dtypes import DType

MAX_AXES: Final = 3


def _convolution(arguments: Arguments, results: Results) -> str:
    """Return "" if numbers are convolved over at most three axes, else why not."""
    axes = len(operand(arguments[1]).type.dims) - 2
    return f"{axes} axes" if axes > MAX_AXES else NUMERIC(arguments, results)


def _int8_convolution(arguments: Arguments, results: Results) -> str:
    """Return "" if int8 weights of at most three axes meet float32, else why not."""
    x, weight, *rest = arguments
    kind = operand(weight).type
    axes = len(kind.dims) - 2
    if axes > MAX_AXES:
        return f"{axes} axes"
    other = unknown_dtypes([kind], {DType.INT8})
    return other or FLOAT32((x, *rest), results)


CONVOLUTIONS: Final[dict[str, Rule]] = {
    **rules(
        _convolution,
        "aten::convolution aten::conv_transpose1d aten::conv_transpose2d.input "
        "aten::conv_transpose3d.input kvc::convolution kvc::pointwise_depthwise",
    ),
    **rules(
        _int8_convolution,
        "kvc::convolution_w8 kvc::pointwise_depthwise_w8 kvc::conv_transpose_w8",
    ),
}
