"""Checks of a payload that the library's safety and the numbers' sense depend on.

In: a payload whose structure, types and memory have been verified. Out: nothing, or an
error before anything native sees it.
"""

from typing import Protocol

import numpy as np

from kvc.runtime.arrays import Array
from kvc.schema.backends.operands import Operand
from kvc.schema.backends.xnnpack import QUANTIZED_LINEARS, why_not
from kvc.schema.errors import BadProgram
from kvc.schema.model import Argument, Constant, Graph, Instruction, Payload, Ref

_SCALES = 4  # the index of the weight's scales among the arguments of a linear


class _Pinned(Protocol):
    def pinned(self, name: int) -> Array:
        """Return the data of a name."""


def check_ops(payload: Payload, where: str) -> None:
    """Check that XNNPACK can run every instruction.

    Raises:
        BadProgram: for the first that it cannot.
    """
    graph = payload.graph
    for index, instruction in enumerate(graph.instructions):
        arguments = [_operands(graph, each) for each in instruction.arguments]
        results = [graph.values[value].type for value in instruction.results]
        reason = why_not(instruction.op, arguments, results)
        if reason:
            raise BadProgram(
                path=where,
                where=f"instruction {index}",
                what=f"the backend xnnpack does not take {instruction.op}: {reason}",
            )


def check_scales(payload: Payload, statics: _Pinned, where: str) -> None:
    """Check that the scales of all quantized weights are positive normal numbers.

    Raises:
        BadProgram: for the first that are not.
        KvcError: as `FreeableBuffer.array`.
    """
    for index, instruction in enumerate(payload.graph.instructions):
        if instruction.op not in QUANTIZED_LINEARS:
            continue
        name = _scales_of(payload.graph, instruction)
        scales = statics.pinned(name).astype(np.float32)
        least = np.finfo(np.float32).smallest_normal
        if not (np.isfinite(scales).all() and (scales >= least).all()):
            raise BadProgram(
                path=where,
                where=f"instruction {index}",
                what=f"scales {payload.names[name]!r} are not all positive and normal",
            )


def _scales_of(graph: Graph, instruction: Instruction) -> int:
    """Return the name of a linear's scales, which `check_ops` has found constant."""
    argument = instruction.arguments[_SCALES]
    assert isinstance(argument, Ref)
    storage = graph.values[argument.value].storage
    assert isinstance(storage, Constant)
    return storage.name


def _operands(graph: Graph, argument: Argument) -> object:
    """Return an argument as the list of what XNNPACK takes is asked about it."""
    if isinstance(argument, tuple):
        return tuple(_operands(graph, item) for item in argument)
    if not isinstance(argument, Ref):
        return argument
    value = graph.values[argument.value]
    return Operand(value.type, isinstance(value.storage, Constant))
