"""A case of an op: its arguments, how eager runs it, and seeded operands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kvc.schema import torch_ops
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS
from kvc.schema.types import TensorType

Argument = object
_GENERATOR = torch.Generator().manual_seed(0)
_ENDINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "identity": torch.clone,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "hard_swish": lambda x: x * (x + 3).clamp(0, 6) / 6,
    "hard_sigmoid": lambda x: (x + 3).clamp(0, 6) / 6,
}


@dataclass(frozen=True)
class Case:
    """One call of an op; `dtype` asks for a result type, as eager's `dtype=`."""

    op: str
    arguments: tuple[Argument, ...]
    dtype: torch.dtype | None = None

    def eager(self) -> tuple[Tensor, ...]:
        names = [param.name for param in OPS[self.op].params]
        keywords = dict(zip(names, self.arguments, strict=True))
        if self.op == "aten::convolution":
            rank = len(keywords["stride"])
            keywords |= {"transposed": False, "output_padding": (0,) * rank}
        if self.op == "aten::batch_norm":
            keywords |= {"training": False, "momentum": 0.1, "cudnn_enabled": False}
        if self.dtype is not None:
            keywords["dtype"] = self.dtype
        results = overload(self.op)(**keywords)
        if self.op == "aten::_embedding_bag_forward_only":  # the rest is for training
            results = results[0]
        return (results,) if isinstance(results, Tensor) else tuple(results)

    def types(self) -> tuple[Argument, ...]:
        """Return the arguments as shape rules take them: types replace tensors."""
        return mapped(self.arguments, type_of)

    def strided(self) -> "Case":
        return Case(self.op, mapped(self.arguments, spread), self.dtype)


def cases(op: str, *arguments: tuple[Argument, ...]) -> tuple[Case, ...]:
    return tuple(Case(op, each) for each in arguments)


def overload(op: str) -> Callable[..., object]:
    namespace, _, name = op.partition("::")
    if namespace == "kvc":
        return {
            "adapted": torch_ops.adapted,
            "attention": torch_ops.attention,
            "cache_update": torch_ops.cache_update,
            "conv_transpose_w8": _conv_transpose_w8,
            "convolution": _ended_convolution,
            "convolution_w8": partial(_by_int8, _ended_convolution),
            "expert_linear": torch_ops.expert_linear,
            "glu": _glu,
            "linear_w8": _linear_w8,
            "pointwise_depthwise": _pointwise_depthwise,
            "pointwise_depthwise_w8": partial(_by_int8, _pointwise_depthwise),
            "quantize_cache": torch_ops.quantize_cache,
            "rotary_embedding": _rotary_embedding,
        }[name]
    packet, _, variant = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), variant or "default")


def mapped(
    arguments: tuple[Argument, ...], function: Callable[[Argument], Argument]
) -> tuple[Argument, ...]:
    return tuple(
        mapped(a, function) if isinstance(a, tuple) else function(a) for a in arguments
    )


def type_of(argument: Argument) -> Argument:
    if isinstance(argument, Tensor):
        return TensorType(type_of(argument.dtype), tuple(argument.shape))
    if isinstance(argument, torch.dtype):
        return DType[str(argument).removeprefix("torch.").upper()]
    return argument


def spread(argument: Argument) -> Argument:
    if not isinstance(argument, Tensor):
        return argument
    return torch.stack((argument, argument), -1)[..., 0]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return seeded random elements of a dtype.

    Floats are normal. Integers are from -6 to 6, those of uint8 from 0 to 6.
    """
    if dtype.is_floating_point:
        return torch.randn(shape, generator=_GENERATOR).to(dtype)
    low, high = {torch.bool: (0, 2), torch.uint8: (0, 7)}.get(dtype, (-6, 7))
    return torch.randint(low, high, shape, generator=_GENERATOR).to(dtype)


def restart(seed: int) -> None:
    """Let the random elements that follow depend on a seed alone."""
    _GENERATOR.manual_seed(seed)


def index(*values: object, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def _glu(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    if activation == "silu":
        return functional.silu(gate) * up
    kind = "tanh" if activation == "gelu_tanh" else "none"
    return functional.gelu(gate, approximate=kind) * up


def _ended_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    ending: str,
    low: float | None,
    high: float | None,
) -> Tensor:
    none = (0,) * len(stride)
    settings = (stride, padding, dilation, False, none, groups)
    made = torch.convolution(input, weight, bias, *settings)
    made = made if residual is None else made + residual
    if ending == "clamp":
        return torch.clamp(made, low, high)
    return _ENDINGS[ending](made)


def _pointwise_depthwise(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ending: str,
    low: float | None,
    high: float | None,
    planes: Tensor,
    planes_bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    planes_ending: str,
    planes_low: float | None,
    planes_high: float | None,
) -> Tensor:
    ones, none = (1,) * len(stride), (0,) * len(stride)
    single = (ones, none, ones, 1, ending, low, high)
    between = _ended_convolution(input, weight, bias, None, *single)
    settings = (stride, padding, dilation, len(weight))
    ended = (planes_ending, planes_low, planes_high)
    between = between.contiguous()  # however the input lies
    return _ended_convolution(between, planes, planes_bias, None, *settings, *ended)


def _by_int8(
    function: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    **rest: Argument,
) -> Tensor:
    """Call a function of float weights with int8 weights times their scales."""
    channels = zip(weight.float(), weight_scale, strict=True)
    floats = torch.stack([one * scale for one, scale in channels])
    return function(input=input, weight=floats, **rest)


def _conv_transpose_w8(
    input: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
) -> Tensor:
    by_output = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    channels = zip(by_output.float(), weight_scale, strict=True)
    floats = torch.stack([one * scale for one, scale in channels])
    turned = floats.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    settings = (stride, padding, dilation, True, output_padding, groups)
    return torch.convolution(input, turned, bias, *settings)


def _linear_w8(
    x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None
) -> Tensor:
    found = functional.linear(x, weight.float()) * weight_scale
    return found if bias is None else found + bias


def _rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if cos.shape[-1] < x.shape[-1]:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return x * cos + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sin


def kind_of(case: Case) -> tuple[object, ...]:
    dtypes: list[torch.dtype] = []

    def seen(argument: Argument) -> Argument:
        if isinstance(argument, Tensor):
            dtypes.append(argument.dtype)
        return argument

    mapped(case.arguments, seen)
    return case.op, tuple(dtypes), case.dtype
