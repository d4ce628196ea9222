"""Explain, for kvc's own backends, why an instruction is in no partition.

In: the name of a backend, and an instruction, with its arguments in the form of
`operands.py`. Out: the reason in words, or "" if the backend supports the instruction.
A supported instruction can still be outside of all partitions; `why_apart` explains
that. `unwritten_by` returns the values of a graph that a backend never writes to
memory.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kvc.schema.backends import (
    coreai,
    coreml,
    cpu,
    ethosu,
    mlx,
    qnn,
    qnn_fixed,
    vulkan,
    xnnpack,
)
from kvc.schema.backends.cpu_rows import unwritten
from kvc.schema.backends.operands import Arguments, Results, WhyNot, arguments_of
from kvc.schema.backends.xnnpack_spatial import INDEXED
from kvc.schema.graph import Graph
from kvc.schema.left import left_within
from kvc.schema.model import Method
from kvc.schema.ops import AFTER, OPS, Aliasing

_WHY_NOT: Final[dict[str, WhyNot]] = {
    "coreai": coreai.why_not,
    "coreml": coreml.why_not,
    "cpu": cpu.why_not,
    "ethosu": ethosu.why_not,
    "mlx": mlx.why_not,
    "qnn": qnn.why_not,
    "vulkan": vulkan.why_not,
    "xnnpack": xnnpack.why_not,
}
NO_OPTIONS: Final[Mapping[str, object]] = MappingProxyType({})
# Reasons why a backend takes none of the nodes that it supports.
_WHY_NOTHING: Final = {
    "coreai": "there is no matrix product",
    "xnnpack": "there is no matrix product or convolution that it could make faster",
}
# Backends for any processor: the report names them for nodes that others leave.
_ON_PROCESSORS: Final = ("cpu", "xnnpack")
_ROWS: Final = (xnnpack.QUANTIZE, *xnnpack.QUANTIZED_LINEARS)


def why_left(
    backend: str,
    op: str,
    arguments: Arguments,
    results: Results,
    used: bool,
    options: Mapping[str, object] = NO_OPTIONS,
) -> str:
    """Return why an instruction is in no partition of a backend of the recipe.

    Args:
        backend: name of the backend, which can be from another package.
        op: the operator of the instruction.
        arguments: the instruction's arguments, with `Operand`s for tensors.
        results: the types of the instruction's results.
        used: whether the graph that contains the instruction calls a partition of the
            backend.
        options: the options that the recipe gives the backend.
    """
    why_not = _WHY_NOT.get(backend)
    if backend == "qnn" and options.get("activations") == "uint16":
        why_not = qnn_fixed.why_not
    if backend == "ethosu" and options.get("npu") == "u55":
        why_not = ethosu.why_not_u55
    if why_not is None:
        return "a backend of another package chooses by rules of its own"
    reason = why_not(op, arguments, results)
    if reason:
        return reason
    return "" if used else _WHY_NOTHING.get(backend, "")


def others_taking(
    methods: Sequence[Method], offered: Collection[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield backends outside of the recipe that support operators left in no partition.

    Only backends for any processor are considered, such as `cpu`. Each backend comes
    with the operators of which it supports every instruction that is in no partition.

    Args:
        methods: methods with instructions that are in no partition.
        offered: names of the recipe's backends, which are not yielded.
    """
    for backend in _ON_PROCESSORS:
        reasons: dict[str, str] = {}
        for method in methods if backend not in offered else ():
            for op, reason in _reasons(backend, method):
                reasons[op] = reasons.get(op) or reason
        taken = frozenset(op for op, reason in reasons.items() if not reason)
        if taken:
            yield backend, taken


def _reasons(backend: str, method: Method) -> Iterator[tuple[str, str]]:
    """Yield the operator of each instruction in no partition, and why it is in none.

    The reason is why the backend does not support the instruction, or "".
    """
    ops = {step.op for graph in method.graphs for step in graph.instructions}
    used = backend not in _WHY_NOTHING or not ops.isdisjoint(xnnpack.PRODUCTS)
    graph, *blocks = method.graphs
    for inside, step in left_within(graph, blocks):
        results = [inside.values[value].type for value in step.results]
        arguments = arguments_of(inside, step)
        yield step.op, why_left(backend, step.op, arguments, results, used)


def why_apart(backend: str, op: str) -> str:
    """Return why an instruction is in no partition although the backend supports it."""
    if backend == "qnn" and OPS[op].aliasing is not Aliasing.CHECK:
        return qnn.why_apart(op)
    if backend == "coreai" and coreai.why_apart(op):
        return coreai.why_apart(op)
    if op == "kvc::append":
        return "it appends to an array that is not a state"
    if op == AFTER:
        return "instructions outside of the backend read the position that it returns"
    if op in _ROWS:
        return "instructions outside of the backend also read its int8 rows"
    if op in INDEXED:
        return "its second result, of indices, is read"
    if op in ("aten::clone", "aten::copy"):
        return "it copies for partitions, and is added once they are cut"
    if OPS[op].aliasing is Aliasing.UPDATE:
        return "it writes over memory that outlives the call"
    return "it fills a state while it reads it, which no partition may"


def unwritten_by(backend: str, graph: Graph) -> frozenset[int]:
    """Return the ids of the values of a graph that a backend never writes to memory.

    Args:
        backend: name of the backend that runs the graph, "" if no backend runs it.
        graph: the graph that holds the values.
    """
    return unwritten(graph) if backend == "cpu" else frozenset()
