"""Shape rules of fused operators; a compiler pass makes one from several operators."""

from kvc.schema.dtypes import DType
from kvc.schema.ops.products import conv_transpose, convolution
from kvc.schema.ops.shapes import Rule, broadcast_shapes, require, shape_of
from kvc.schema.ops.spec import Concrete
from kvc.schema.types import TensorType

GATES = ("silu", "gelu", "gelu_tanh")
ENDINGS = (
    *("identity", "clamp", "silu", "gelu", "gelu_tanh", "sigmoid"),
    *("hard_swish", "hard_sigmoid"),
)


def rotary_embedding(x: TensorType, cos: TensorType, sin: TensorType) -> Rule:
    """Rotate the pairs (x[i], x[i + width / 2]) of the last axis by angles.

    The shape of cos and sin must broadcast to the shape of x. If both halves of the
    last axis use the same angles, cos and sin can have half the width of x.
    """
    shape, table = shape_of(x), shape_of(cos)
    require(bool(shape) and shape[-1] % 2 == 0, "rotary embedding of {}", x)
    floats = x.dtype is cos.dtype is DType.FLOAT32 and sin == cos
    require(floats, "{} turned by {} and {}", x, cos, sin)
    part = shape if table[-1:] == shape[-1:] else (*shape[:-1], shape[-1] // 2)
    fits = table[-1:] == part[-1:] and broadcast_shapes([part, table]) == part
    require(fits, "{} turned by {}", x, cos)
    return ((x.dtype, shape),)


def glu(gate: TensorType, up: TensorType, activation: str) -> Rule:
    """Multiply the activation of a gate with a tensor of the same shape."""
    require(activation in GATES, "a gate by {}", activation)
    require(gate == up and gate.dtype is DType.FLOAT32, "{} gates {}", gate, up)
    return ((gate.dtype, shape_of(gate)),)


def ended_convolution(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    residual: TensorType | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    ending: str,
    *bounds: float | None,
) -> Rule:
    """Apply an elementwise function to a convolution's result plus a residual.

    A hard sigmoid of x is clamp(x + 3, 0, 6) / 6, a hard swish x times that. `bounds`
    are those of "clamp": the least and the greatest value, None for no bound.
    """
    made = convolution(x, weight, bias, stride, padding, dilation, groups)
    require(ending in ENDINGS, "a convolution ends with {}", ending)
    fits = (ending == "clamp") != (bounds == (None, None))
    require(fits, "bounds of {}", ending)
    require(x.dtype is DType.FLOAT32, "convolution of {}", x)
    same = residual is None or (residual.dtype, shape_of(residual)) == made[0]
    require(same, "a residual {}", residual)
    return made


def pointwise_depthwise(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    ending: str,
    low: float | None,
    high: float | None,
    planes: TensorType,
    planes_bias: TensorType | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    planes_ending: str,
    *bounds: float | None,
) -> Rule:
    """Convolve single elements of x, then each channel of the result.

    The weight is [channels, in, 1, ...], the planes' weight [channels, 1, ...]. Both
    convolutions end as those of `ended_convolution`.
    """
    ones, none = (1,) * len(stride), (0,) * len(stride)
    kernel, channels = shape_of(weight), shape_of(planes)[:2]
    single = kernel[2:] == ones and channels == (kernel[0], 1)
    require(single, "{} and then {}", weight, planes)
    ((_, shape),) = ended_convolution(
        x, weight, bias, None, ones, none, ones, 1, ending, low, high
    )
    return ended_convolution(
        TensorType(x.dtype, shape),
        planes,
        planes_bias,
        None,
        stride,
        padding,
        dilation,
        kernel[0],
        planes_ending,
        *bounds,
    )


# Convolutions over int8 weights: weight * weight_scale of its output channel.


def convolution_w8(
    x: TensorType, weight: TensorType, scale: TensorType, *rest: Concrete
) -> Rule:
    """`kvc::convolution_w8`: weight int8 [out, in / groups, ...], scale float32 [out].

    The rest is as in `ended_convolution`.
    """
    made: Rule = ended_convolution(x, _scaled(weight, scale, weight.dims[:1]), *rest)  # type: ignore[arg-type]  # as the signature has them
    return made


def pointwise_depthwise_w8(
    x: TensorType, weight: TensorType, scale: TensorType, *rest: Concrete
) -> Rule:
    """`kvc::pointwise_depthwise_w8`: weight int8 [channels, in, 1, ...].

    The scale is float32 [channels]; the rest is as in `pointwise_depthwise`.
    """
    made: Rule = pointwise_depthwise(x, _scaled(weight, scale, weight.dims[:1]), *rest)  # type: ignore[arg-type]  # as the signature has them
    return made


def conv_transpose_w8(
    x: TensorType,
    weight: TensorType,
    scale: TensorType,
    bias: TensorType | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
) -> Rule:
    """`kvc::conv_transpose_w8`: weight int8 [in, out / groups, ...].

    The scale is float32 [out]; the rest is as in `conv_transpose`.
    """
    settings = (stride, padding, output_padding, groups, dilation)
    floats = [each for each in (x, bias) if each is not None]
    require(all(each.dtype is DType.FLOAT32 for each in floats), "floats {}", x)
    channels = tuple(size * groups for size in shape_of(weight)[1:2])
    return conv_transpose(x, _scaled(weight, scale, channels), bias, *settings)


def _scaled(
    weight: TensorType, scale: TensorType, channels: tuple[object, ...]
) -> TensorType:
    """Return the type of int8 weights times scales, one for each output channel."""
    require(weight.dtype is DType.INT8, "int8 weights {}", weight)
    one_each = scale.dtype is DType.FLOAT32 and scale.dims == channels
    require(one_each, "scales {} of weights {}", scale, weight)
    return TensorType(DType.FLOAT32, weight.dims)
