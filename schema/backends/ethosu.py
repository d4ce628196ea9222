"""Support list of the backend `ethosu`: operators and the shapes they accept.

Each operator becomes TOSA operators on int8 and int16. The compiler selects nodes by
this list; the runtime refuses a block with any other node. If a recipe targets
Ethos-U55, operators that only Ethos-U85 runs are not selected.
"""

from typing import Final

import numpy as np

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
from kvc.schema.types import TensorType

MAX_RANK: Final = 4
MAX_SLOTS: Final = 1 << 15  # of a cache: int48 sums of int16 products cannot overflow
MAX_WIDTH: Final = 1 << 14  # of heads and of rows of norms
CACHE_UPDATE, ATTENTION = "kvc::cache_update", "kvc::attention"
WRITERS: Final = ("aten::copy", CACHE_UPDATE)  # they write their first operand
CHECK_INDEX: Final = "kvc::check_index"  # the host runs it before the NPU
ROTARY: Final = "kvc::rotary_embedding"
# Operands that are integers in the model: a first slot, a valid length, an index.
_POSITIONS: Final = {CACHE_UPDATE: 2, ATTENTION: 3, CHECK_INDEX: 0}
_LARGEST: Final = float(np.finfo(np.float32).max)
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
    """Return why the backend cannot run a node, or ""; this function is a `WhyNot`."""
    floats = list(arguments)
    wrong = _position(floats.pop(_POSITIONS[op])) if op in _POSITIONS else ""
    types = [*(each.type for each in operands_of(floats)), *results]
    wrong = wrong or next(filter(None, map(_wrong_type, types)), "")
    if wrong:
        return wrong
    if op in FUNCTIONS:
        return ""
    rule = RULES.get(op)
    if rule is not None:
        return rule(arguments, results)
    if OPS[op].aliasing is Aliasing.VIEW:
        return f"it has no such view as {op}"
    return f"it has no operator for {op}"


def _wrong_type(kind: TensorType) -> str:
    """Return why the NPU cannot represent a tensor, or ""."""
    if kind.dtype is not DType.FLOAT32:
        return f"it computes only tensors that are float32 in the model, not {kind}"
    if len(kind.dims) > MAX_RANK:
        return f"{kind} has more than {MAX_RANK} dims"
    return f"{kind} has no elements" if 0 in kind.dims else ""


def why_not_u55(op: str, arguments: Arguments, results: Results) -> str:
    """Return why Ethos-U55 cannot run a node, or ""; this function is a `WhyNot`."""
    if op in _OF_U85:
        return f"Ethos-U55 does not run {op}: {_OF_U85[op]}"
    return why_not(op, arguments, results)


_OF_U85: Final = {
    CACHE_UPDATE: "it has no SCATTER",
    ATTENTION: "it has no MATMUL of int16",
    "aten::rms_norm": "it has no MATMUL of int16",
}


def _position(argument: object) -> str:
    """Return why a position argument is not one int64 tensor of shape [1], or "".

    The argument is a slot or a length, and must not be a constant.
    """
    if not isinstance(argument, Operand) or argument.constant:
        return "a position that is fixed"
    kind = argument.type
    if kind.dtype is not DType.INT64 or kind.dims != (1,):
        return f"positions {kind}, and not one of one row"
    return ""


def _any(arguments: Arguments, results: Results) -> str:
    return ""


def _addition(arguments: Arguments, results: Results) -> str:
    return "" if arguments[2] == 1 else f"a factor of {arguments[2]}"


def _constant(arguments: Arguments, *places: int) -> str:
    """Return a reason if the arguments at `places` include a computed tensor, or ""."""
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


def _is_factor(given: object) -> bool:
    """Tell whether an argument is None, or a number from 0 to the largest float32."""
    return given is None or (isinstance(given, int | float) and 0 <= given <= _LARGEST)


def _normed(arguments: Arguments, results: Results) -> str:
    x, axes, _, epsilon = arguments
    width = operand(x).type.dims[-1]
    if axes != (width,) or not isinstance(width, int) or width > MAX_WIDTH:
        return f"a norm over {axes}"
    if not _is_factor(epsilon):
        return f"a norm with an epsilon of {epsilon}"
    return _constant(arguments, 2)


def _turned(arguments: Arguments, results: Results) -> str:
    x, cos, sin = (operand(one).type.dims for one in arguments)
    width = x[-1]
    if not isinstance(width, int) or cos != sin or len(cos) > len(x):
        return f"angles {operand(arguments[1]).type} of {operand(arguments[0]).type}"
    return ""


def _written(arguments: Arguments, results: Results) -> str:
    cache, _, _, axis, mode, lengths, keep = arguments
    dims = operand(cache).type.dims
    if len(dims) != 4 or dims[0] != 1 or axis not in (2, -2):
        return f"axis {axis} of a cache {operand(cache).type}"
    if mode != "linear" or lengths is not None or keep:
        return "a ring, or rows of different lengths"
    return ""


def _attention(arguments: Arguments, results: Results) -> str:
    q, k, v = (operand(one).type.dims for one in arguments[:3])
    if any(len(one) != 4 for one in (q, k, v)) or q[0] != 1:
        return f"attention of {operand(arguments[0]).type}"
    heads, groups, width, slots = q[1], v[1], q[3], v[2]
    if not (isinstance(heads, int) and isinstance(groups, int) and groups):
        return f"{heads} heads of {groups}"
    if heads % groups or not isinstance(width, int) or width > MAX_WIDTH:
        return f"{heads} heads of {groups}, {width} wide"
    if isinstance(slots, int) and slots > MAX_SLOTS:
        return f"a cache of {slots} positions, and not at most {MAX_SLOTS}"
    if not _is_factor(arguments[4]):
        return f"scores multiplied by {arguments[4]}"
    causal, *others, layout = arguments[5:13]
    if causal is not True or layout != "linear":
        return "attention that is not causal, or over a ring"
    if any(one is not None for one in (*others, *arguments[13:16])) or arguments[16]:
        return "a window, a cap, a mask, slopes, sinks, scales or rows of lengths"
    return ""


RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(ADDITIONS, _addition),
    "aten::mul.Tensor": _any,
    "aten::linear": _linear,
    "aten::convolution": _convolution,
    "aten::rms_norm": _normed,
    ROTARY: _turned,
    CACHE_UPDATE: _written,
    ATTENTION: _attention,
    CHECK_INDEX: _any,
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
