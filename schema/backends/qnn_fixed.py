"""Support list and payload format of `qnn` partitions on 16-bit integers.

    number of value grids, 4 bytes | value grids | grids of attention scores

A partition with a payload computes on the grids in the payload; a partition without a
payload computes in float16. The compiler writes payloads. The runtime reads payloads,
and does not trust their content.
"""

from collections.abc import Mapping
from typing import Final

from kvc.schema.backends import qnn
from kvc.schema.backends.grids import Grid, Stored, read_grids, write_grids
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
    CHECKS,
    accepted,
)
from kvc.schema.backends.operands import (
    Arguments,
    Operand,
    Results,
    Rule,
    operand,
)
from kvc.schema.dtypes import DType
from kvc.schema.errors import BadProgram
from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing

LINEAR: Final = "kvc::linear_w8"
LEAST: Final = 2.0**-40  # of scales: what is derived from scales stays normal
LARGEST: Final = 2.0**40
# The most products of 16-bit and 8-bit integers in a sum: QNN's emulator is exact for
# this many products of extreme values (measured).
MAX_DEPTH: Final = 1 << 15
_COUNT_NBYTES: Final = 4


@frozen
class Grids:
    """The quantization grids of a partition.

    Attributes:
        values: the grid of each value, uint16, by value id.
        scores: for each attention, the grid of its scaled query-key products, by the id
            of the value that is the attention's result.
    """

    values: Mapping[int, Grid]
    scores: Mapping[int, Grid]


def why_not(op: str, arguments: Arguments, results: Results) -> str:
    """Return why the backend cannot run a node on integers, or "".

    This function is a `WhyNot`.
    """
    if op == LINEAR:  # float16 has no int8 weights
        return _linear(arguments, results)
    is_view = OPS[op].aliasing is Aliasing.VIEW or op in CHECKS
    rule = accepted if is_view else RULES.get(op)
    if rule is None:
        return f"it does not run {op} on integers"
    return qnn.why_not(op, arguments, results) or rule(arguments, results)


def _linear(arguments: Arguments, results: Results) -> str:
    _, weight, scale, bias = arguments
    for each in (weight, scale, bias):
        if isinstance(each, Operand) and not each.constant:
            return "a weight or bias that is computed"
    depth = operand(weight).type.dims[-1]
    if not isinstance(depth, int) or depth > MAX_DEPTH:
        return f"a weight {operand(weight).type} of more than {MAX_DEPTH} inputs"
    return ""


def _over_number(arguments: Arguments, results: Results) -> str:
    return "division by 0" if arguments[1] == 0 else ""


def _written(arguments: Arguments, results: Results) -> str:
    held = operand(arguments[0]).type
    return "" if held.dtype is DType.FLOAT32 else f"it takes no cache {held}"


def _attention(arguments: Arguments, results: Results) -> str:
    mask, slopes = arguments[9:11]
    if isinstance(mask, Operand) and mask.type.dtype is not DType.BOOL:
        return f"a mask {mask.type}, whose numbers have no bounds"
    if slopes is not None:
        return "slopes, with which scores have no bounds"
    if operand(arguments[1]).type.dtype is not DType.FLOAT32:
        return f"keys {operand(arguments[1]).type}"
    return ""


def _attention_product(arguments: Arguments, results: Results) -> str:
    masked = arguments[3] is not None
    return "a mask, whose numbers have no bounds" if masked else ""


_AS_FLOATS: Final = (
    "aten::add.Tensor aten::sub.Tensor aten::add.Scalar aten::sub.Scalar "
    "aten::mul.Tensor aten::mul.Scalar aten::maximum aten::minimum "
    "aten::neg aten::abs aten::relu aten::sigmoid aten::silu aten::tanh aten::gelu "
    "aten::clone aten::reshape aten::cat aten::matmul aten::mm aten::bmm "
    "aten::rms_norm aten::layer_norm aten::pow.Tensor_Scalar aten::softmax.int "
    "kvc::rotary_embedding kvc::glu"
)
# What integers demand beyond the list for float16.
RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(_AS_FLOATS.split(), accepted),
    "aten::div.Scalar": _over_number,
    LINEAR: _linear,
    qnn.PRODUCT: _attention_product,
    CACHE_UPDATE: _written,
    ATTENTION: _attention,
}


def write_payload(grids: Grids) -> bytes:
    """Encode the grids of a partition as the partition's payload."""
    count = len(grids.values).to_bytes(_COUNT_NBYTES, "little")
    return count + write_grids(grids.values) + write_grids(grids.scores)


def read_payload(raw: bytes, graph: Graph, path: str, where: str) -> Grids:
    """Decode the grids of a partition from the payload of the partition.

    Args:
        raw: bytes from `write_payload`, which are not trusted.
        graph: the partition's code.
        path: path of the bundle, for messages.
        where: the part of the bundle that holds the bytes, for messages.

    Raises:
        BadProgram: the bytes are not grids that the device supports.
    """
    count = int.from_bytes(raw[:_COUNT_NBYTES], "little")
    end = _COUNT_NBYTES + count * len(write_grids({0: Grid(Stored.INT8, 1.0)}))
    if not _COUNT_NBYTES <= end <= len(raw):
        what = f"{count} grids in a payload of {len(raw)} bytes"
        raise BadProgram(path=path, where=where, what=what)
    values = read_grids(raw[_COUNT_NBYTES:end], graph, path, where)
    scores = read_grids(raw[end:], graph, path, where)
    for value, grid in (*values.items(), *scores.items()):
        wrong = _wrong(grid)
        if wrong:
            what = f"the grid of value {value}: {wrong}"
            raise BadProgram(path=path, where=where, what=what)
    made = {v for s in graph.instructions if s.op in _ATTEND for v in s.results}
    if scores.keys() != made:
        said, wanted = sorted(scores), sorted(made)
        what = f"scores of values {said}; those of attention are {wanted}"
        raise BadProgram(path=path, where=where, what=what)
    return Grids(values, scores)


_ATTEND: Final = (ATTENTION, qnn.PRODUCT)


def _wrong(grid: Grid) -> str:
    """Return why the device does not support a grid, or ""."""
    if not LEAST <= grid.scale <= LARGEST:
        return f"a scale of {grid.scale}"
    if grid.stored is not Stored.UINT16:
        return f"integers of the kind {grid.stored.name.lower()}"
    return ""
