"""How kernels take arguments: strings as numbers, and which operands lie without gaps.

kernels.h describes the form of a step's arguments.
"""

import math
from typing import Final

from kvc.runtime.native import ABSENT
from kvc.schema.dtypes import DType
from kvc.schema.ops.spec import Param, ParamKind

_MESSAGE: Final = "assert_msg"  # a parameter that no kernel reads
# String arguments as numbers for kernels.
TEXTS: Final = {
    "linear": 0, "circular": 1,
    "none": 0, "tanh": 1,
    "silu": 0, "gelu": 1, "gelu_tanh": 2, "identity": 3, "clamp": 4, "sigmoid": 5,
    "hard_swish": 6, "hard_sigmoid": 7,
    "floor": 0, "trunc": 1,
    "reduced": 0, "complete": 1, "r": 2,
    "sum": 0, "prod": 1, "mean": 2, "amax": 3, "amin": 4,
}  # fmt: skip
# Operands whose rows must be contiguous, by index among a kernel's tensors after its
# results; the whole array is made contiguous, to keep it simple.
PACKED: Final = {
    "aten::linear": (2,),
    "aten::convolution": (1, 2),
    "aten::conv_transpose1d": (1, 2),
    "aten::conv_transpose2d.input": (1, 2),
    "aten::conv_transpose3d.input": (1, 2),
    "kvc::convolution": (1, 2, 3),
    "kvc::pointwise_depthwise": (1, 2, 3, 4),
    "kvc::convolution_w8": (1, 2, 3, 4),
    "kvc::pointwise_depthwise_w8": (1, 2, 3, 4, 5),
    "kvc::conv_transpose_w8": (1, 2, 3),
    "aten::rms_norm": (0, 1),
    "aten::layer_norm": (0, 1, 2),
    "aten::softmax.int": (0,),
    "aten::log_softmax.int": (0,),
    "aten::avg_pool2d": (0,),
    "aten::avg_pool3d": (0,),
    "aten::_adaptive_avg_pool2d": (0,),
    "aten::_adaptive_avg_pool3d": (0,),
    "aten::max_pool2d_with_indices": (0,),
    "aten::max_pool3d_with_indices": (0,),
    "aten::adaptive_max_pool2d": (0,),
    "aten::adaptive_max_pool3d": (0,),
    "aten::upsample_nearest2d": (0,),
    "aten::upsample_bilinear2d": (0,),
    "aten::_upsample_bilinear2d_aa": (0,),
    "aten::_upsample_bicubic2d_aa": (0,),
    "aten::grid_sampler_2d": (0, 1),
    "aten::grid_sampler_3d": (0, 1),
    "aten::batch_norm": (0, 1, 2, 3, 4),
    "aten::group_norm": (0, 1, 2),
    "aten::linalg_householder_product": (1,),
    "aten::roll": (0,),
    "aten::bucketize.Tensor": (0, 1),
    "aten::searchsorted.Tensor": (0, 1),
    "kvc::linear_w8": (1, 2, 3),
    "kvc::linear_qd8": (0, 1, 2, 3, 4, 5),
    "kvc::linear_qb4": (0, 1, 2, 3, 4, 5),
    "kvc::linear_q8": (0, 1, 2, 3, 4, 5, 6),
    "kvc::linear_q4": (0, 1, 2, 3, 4, 5, 6, 7),
    "kvc::adapted": (0, 1, 7),
    "kvc::expert_linear": (3,),
    "kvc::expert_linear_qd8": (3, 4, 6),
    "kvc::expert_linear_q8": (4, 5, 7),
}
# Operands whose elements must be contiguous for each index of the first axis.
PACKED_PARTS: Final = {"kvc::adapted": (2, 3, 4, 8, 9)}
# Operators with a second result, of indices, that kernels leave out if nobody reads it.
INDEXED: Final = {
    "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices",
    "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d",
}  # fmt: skip
# Kernels that write results with any strides; other results are contiguous.
STRIDED: Final = {
    "aten::clone", "aten::cat", "aten::stack", "aten::repeat", "aten::full",
    "kvc::rotary_embedding",
}  # fmt: skip


def write_argument(
    param: Param, given: object, integers: list[int], numbers: list[float]
) -> None:
    """Append an argument that is not a tensor to a step's integers or numbers.

    kernels.h describes the form of arguments.
    """
    if isinstance(given, tuple):
        integers += (len(given), *given)
    elif isinstance(given, str):
        integers.append(0 if param.name == _MESSAGE else TEXTS[given])
    elif not isinstance(given, DType):
        assert given is None or isinstance(given, int | float), "no others are left"
        if param.kind in (ParamKind.FLOAT, ParamKind.SCALAR):
            numbers.append(math.nan if given is None else float(given))
        if param.kind is not ParamKind.FLOAT:
            integers.append(_whole(given))


def _whole(given: float | None) -> int:
    """Return a number as an integer: `ABSENT` for None, 0 for a float out of range.

    Raises:
        OverflowError: an integer has more than 64 bits.
    """
    if given is None:
        return ABSENT
    if ABSENT <= given < -ABSENT:
        return int(given)
    if isinstance(given, float):
        return 0
    raise OverflowError(f"{given} has more than 64 bits")
