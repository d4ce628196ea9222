"""Check that a block fulfills the library's assumptions.

In: a block whose structure, types and memory have been verified. Out: nothing, or an
error before any native call. The library assumes that each input and output is float32,
and that the three results of `kvc::quantize_rows` are only read together, as one value.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from kvc.runtime.delegates.operands import check_apart, check_taken
from kvc.runtime.delegates.xnnpack.layouts import PLAIN, ROWS
from kvc.runtime.memory.arrays import Array
from kvc.schema.backends.xnnpack import (
    QUANTIZE,
    QUANTIZED_LINEARS,
    why_not,
    why_not_outside,
)
from kvc.schema.errors import BadProgram
from kvc.schema.graph import Argument, Constant, Graph, Instruction, Ref
from kvc.schema.model import NamedData
from kvc.schema.ops import OPS, Aliasing

_SCALES = 4  # the index of the weight's scales among the arguments of a linear
_ROWS = 3  # number of a linear's first arguments that are quantized rows


class _Pinned(Protocol):
    def pinned(self, name: int, layout: str = ...) -> Array:
        """Return the named data with an id, arranged in a layout."""


def check_ops(graph: Graph, where: str) -> None:
    """Check that XNNPACK supports every instruction, input and output of a graph.

    Raises:
        BadProgram: an instruction is not supported; the error names the first.
    """
    check_taken(graph, "xnnpack", why_not, where)
    check_apart(graph, "xnnpack", where)
    rows: dict[int, tuple[int, ...]] = {}  # result of quantize_rows -> all three
    for index, instruction in enumerate(graph.instructions):
        if what := _misuse_of_rows(instruction, rows):
            raise BadProgram(path=where, where=f"instruction {index}", what=what)
        if instruction.op == QUANTIZE:
            rows.update(dict.fromkeys(instruction.results, instruction.results))
    # Inputs and outputs, even if no instruction uses them.
    ends = [(f"input {i}", value) for i, value in enumerate(graph.inputs)]
    ends += [(f"output {i}", value) for i, value in enumerate(graph.outputs)]
    for place, value in ends:
        reason = why_not_outside(graph.values[value].type)
        if value in rows:
            reason = "quantized rows do not leave it"
        if reason:
            what = f"the backend xnnpack does not take the operand: {reason}"
            raise BadProgram(path=where, where=place, what=what)
    _check_filled(graph, where)


def _misuse_of_rows(
    instruction: Instruction, rows: Mapping[int, tuple[int, ...]]
) -> str:
    """Return words for how an instruction misuses quantized rows, or "" if it does not.

    `rows` has the results of each `kvc::quantize_rows`, by the id of each result.
    """
    op, arguments = instruction.op, instruction.arguments
    if op in QUANTIZED_LINEARS:
        first = next(_references(arguments[:1]))
        if rows.get(first) != tuple(_references(arguments[:_ROWS])):
            return f"{op} reads other than all results of one {QUANTIZE}, in order"
        arguments = arguments[_ROWS:]
    taken = any(value in rows for value in _references(arguments))
    return f"{op} reads quantized rows, which only quantized linears may" * taken


def _references(arguments: tuple[Argument, ...]) -> Iterator[int]:
    """Yield the ids of values among arguments, including those in lists."""
    for argument in arguments:
        if isinstance(argument, Ref):
            yield argument.value
        elif isinstance(argument, tuple):
            yield from _references(argument)


def _check_filled(graph: Graph, where: str) -> None:
    """Check that a value written to an input's memory is not computed from that input.

    The library can write any of its outputs before it has read all of its inputs.
    """
    filled, read = set[int](), set[int]()
    old = {value: value for value in graph.inputs}  # views of inputs' old content
    for step in graph.instructions:
        taken = [old[v] for v in _references(step.arguments) if v in old]
        if OPS[step.op].aliasing is Aliasing.VIEW:
            old.update((v, taken[0]) for v in step.results if taken)
        else:
            read.update(taken)
            filled.update(graph.root_of(value) for value in step.results)
    for i, value in enumerate(graph.inputs):
        if value in filled & read:
            what = "the backend xnnpack cannot write over an input that it reads"
            raise BadProgram(path=where, where=f"input {i}", what=what)


def check_scales(
    graph: Graph, statics: _Pinned, names: Sequence[NamedData], where: str
) -> None:
    """Check that the scales of all quantized weights are positive normal numbers.

    Raises:
        BadProgram: a scale is not positive and normal; the error names the first.
        KvcError: the scales cannot be read; see `FreeableBuffer.array`.
    """
    for index, instruction in enumerate(graph.instructions):
        if instruction.op not in QUANTIZED_LINEARS:
            continue
        # `check_ops` has found the scales constant.
        argument = instruction.arguments[_SCALES]
        assert isinstance(argument, Ref)
        storage = graph.values[argument.value].storage
        assert isinstance(storage, Constant)
        name = storage.name
        # In the layout that the library gets, so that only one copy is made.
        layout = ROWS if instruction.op == "kvc::linear_qb4" else PLAIN
        scales = statics.pinned(name, layout).astype(np.float32)
        least = np.finfo(np.float32).smallest_normal
        if not (np.isfinite(scales).all() and (scales >= least).all()):
            raise BadProgram(
                path=where,
                where=f"instruction {index}",
                what=f"scales {names[name].name!r} are not all positive and normal",
            )
