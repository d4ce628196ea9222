"""The list of what the backend `ethosu` supports: ops, and the shapes they take.

All of it becomes operators of TOSA on int8. The compiler chooses nodes by it, the
runtime refuses blocks by it.
"""

from typing import Final

from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    operand,
    operands_of,
)
from kvc.schema.dtypes import DType
from kvc.schema.ops import OPS, Aliasing

MAX_RANK: Final = 4
MAX_DEPTH: Final = 32_768  # int8 products whose sum is below 2 ** 30
MAX_BIAS: Final = 1 << 30  # with these products, an int32
FUNCTIONS: Final = (  # of one value: a table of 256 results
    "aten::abs",
    "aten::add.Scalar",
    "aten::clamp",
    "aten::elu",
    "aten::exp",
    "aten::gelu",
    "aten::hardtanh",
    "aten::leaky_relu",
    "aten::mul.Scalar",
    "aten::neg",
    "aten::relu",
    "aten::sigmoid",
    "aten::silu",
    "aten::sub.Scalar",
    "aten::tanh",
)
ADDITIONS: Final = ("aten::add.Tensor", "aten::sub.Tensor")


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why the backend cannot run a node, "" when it can; a `WhyNot`."""
    types = [*(each.type for each in operands_of(arguments)), *results]
    for kind in types:
        if kind.dtype is not DType.FLOAT32:
            return f"it computes what is float32 in the model alone, not {kind}"
        if len(kind.dims) > MAX_RANK:
            return f"{kind} has more than {MAX_RANK} dims"
        if 0 in kind.dims:
            return f"{kind} has no elements"
    if op in FUNCTIONS:
        return ""
    rule = RULES.get(op)
    if rule is not None:
        return rule(arguments, results)
    if OPS[op].aliasing is Aliasing.VIEW:
        return f"it has no such view as {op}"
    return f"it has no operator for {op}"


def _any(arguments: Arguments, results: Results) -> str:
    return ""


def _addition(arguments: Arguments, results: Results) -> str:
    return "" if arguments[2] == 1 else f"a factor of {arguments[2]}"


def _constant(arguments: Arguments, *places: int) -> str:
    """Say which of some arguments is computed; these must be named data or None."""
    for place in places:
        given = arguments[place]
        if isinstance(given, Operand) and not given.constant:
            return "a weight or bias that is computed"
    return ""


def _linear(arguments: Arguments, results: Results) -> str:
    weight = operand(arguments[1]).type
    depth = weight.dims[-1]
    if len(weight.dims) != 2 or not isinstance(depth, int) or depth > MAX_DEPTH:
        return f"a weight {weight}"
    return _constant(arguments, 1, 2)


def _convolution(arguments: Arguments, results: Results) -> str:
    x, weight, *_, groups = arguments
    kind, channels = operand(weight).type, operand(x).type.dims[1]
    if len(kind.dims) not in (3, 4):
        return f"a convolution over {len(kind.dims) - 2} axes"
    if groups not in (1, channels):
        return f"{groups} groups of {channels} channels"
    sizes = [size for size in kind.dims[1:] if isinstance(size, int)]
    depth = 1
    for size in sizes:
        depth *= size
    if len(sizes) < len(kind.dims) - 1 or depth > MAX_DEPTH:
        return f"a weight {kind}"
    return _constant(arguments, 1, 2)


def _slice(arguments: Arguments, results: Results) -> str:
    return "" if arguments[4] == 1 else f"every {arguments[4]}th element"


RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(ADDITIONS, _addition),
    "aten::mul.Tensor": _any,
    "aten::linear": _linear,
    "aten::convolution": _convolution,
    "aten::cat": _any,
    "aten::clone": _any,
    "aten::copy": _any,
    "aten::reshape": _any,
    "aten::alias": _any,
    "aten::expand": _any,
    "aten::permute": _any,
    "aten::select.int": _any,
    "aten::slice.Tensor": _slice,
    "aten::split_with_sizes": _any,
    "aten::squeeze.dims": _any,
    "aten::transpose.int": _any,
    "aten::unsqueeze": _any,
    "aten::view": _any,
}
