"""Join a convolution of single elements with the depthwise one that reads its result.

`kvc::pointwise_depthwise` makes some channels, convolves them while they are in the
processor's cache, and goes on. What lies between the two, often the largest tensor of
a network for phones (MobileNetV2, Sandler et al., 2018), is never whole in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Final

from kvc.compiler.ir import Argument, Method, Node, Program, Value
from kvc.compiler.ir.rewrite import each_method
from kvc.schema.dtypes import DType

# Bytes between the two from which on a pair pays: smaller results stay in a cache.
_LEAST_NBYTES: Final = 1 << 19
_ENDS: Final = ("identity", None, None)


@dataclass(frozen=True, slots=True)
class PairConvolutions:
    """Replace a depthwise convolution, and the one before it, by one operator."""

    name: ClassVar[str] = "pair-convolutions"

    def run(self, program: Program) -> Program:
        """Return the program with such pairs as one node each."""
        return each_method(program, _pair)


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A float32 convolution.

    Attributes:
        operands: input, weight and bias.
        settings: stride, padding, dilation and groups.
        residual: what is added to the result, or None.
        ending: the function of the sum, and its bounds.
    """

    operands: tuple[Argument, ...]
    settings: tuple[Argument, ...]
    residual: Argument
    ending: tuple[Argument, ...]


def _read(node: Node) -> _Convolution | None:
    """Return what a node convolves, None if it is no convolution of float32."""
    if not node.outputs or node.outputs[0].type.dtype is not DType.FLOAT32:
        return None
    given = node.arguments
    if node.op == "aten::convolution":
        return _Convolution(given[:3], given[3:7], None, _ENDS)
    if node.op == "kvc::convolution":
        return _Convolution(given[:3], given[4:8], given[3], given[8:])
    return None


def _pair(method: Method) -> Method:
    makers, reads = method.makers(), method.reads()
    nodes = tuple(_joined(node, makers, reads) for node in method.nodes)
    return replace(method, nodes=nodes)


def _joined(node: Node, makers: Mapping[int, Node], reads: Mapping[int, int]) -> Node:
    planes = _read(node)
    if planes is None or planes.residual is not None:
        return node
    between, weight, bias = planes.operands
    assert isinstance(between, Value)
    assert isinstance(weight, Value)
    maker = makers.get(between.id)
    first = None if maker is None else _read(maker)
    if first is None or reads[between.id] != 1 or not _is_single(first):
        return node
    channels = between.type.dims[1]
    *settings, groups = planes.settings
    depthwise = weight.type.dims[:2] == (channels, 1) and groups == channels
    if not depthwise or not _is_large(between):
        return node
    return replace(
        node,
        op="kvc::pointwise_depthwise",
        arguments=(
            *(*first.operands, *first.ending, weight, bias),
            *(*settings, *planes.ending),
        ),
    )


def _is_single(conv: _Convolution) -> bool:
    """Tell whether each element of a result comes from one place of the input."""
    weight = conv.operands[1]
    assert isinstance(weight, Value)
    ones = (1,) * (len(weight.type.dims) - 2)
    stride, padding, _, groups = conv.settings
    plain = (stride, padding, groups) == (ones, (0,) * len(ones), 1)
    return plain and weight.type.dims[2:] == ones and conv.residual is None


def _is_large(value: Value) -> bool:
    sizes = [size for size in value.type.dims if isinstance(size, int)]
    whole = len(sizes) == len(value.type.dims)
    return whole and 4 * prod(sizes[1:]) >= _LEAST_NBYTES
