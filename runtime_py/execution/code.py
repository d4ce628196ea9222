"""`Code`: what is needed to bind a method's graphs, besides memory."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field

from kvc.runtime.execution.delegate import Handle
from kvc.runtime.execution.dependents import Dependence
from kvc.runtime.kernels.kernel import Kernel
from kvc.runtime.kernels.table import load_kernels
from kvc.schema.control import read_control
from kvc.schema.errors import KvcError
from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph
from kvc.schema.left import needs_torch
from kvc.schema.model import Program
from kvc.schema.ops import DELEGATE, OPS, Aliasing

Prepared = dict[tuple[str, int], Kernel]


@frozen
class Code:
    """The blocks and partitions of a method, shared by its frames in every context.

    Attributes:
        method: the method's name, for messages.
        blocks: the graphs of the method's blocks.
        partitions: for the index of each block that a backend runs, the number of the
            partition in the program.
        delegate: returns the handle of a partition by its number; makes the handle at
            the first request.
        prepared: kernels with a constant packed in advance, by operator and constant
            name; filled during binding.
        max_turns: the most iterations of a `kvc::while`, None for no limit.
        dependence: for each graph, which of its parts depend on sizes; filled when a
            graph is bound to new sizes.
    """

    method: str
    blocks: tuple[Graph, ...]
    partitions: Mapping[int, int]
    delegate: Callable[[int], Handle]
    prepared: Prepared
    max_turns: int | None = None
    dependence: dict[int, Dependence] = field(default_factory=dict)


def code_of(
    program: Program,
    method: int,
    delegate: Callable[[int], Handle],
    prepared: Prepared,
    max_turns: int | None = None,
) -> Code:
    """Return the code of a method of a program."""
    partitions = {
        partition.block: number
        for number, partition in enumerate(program.delegates)
        if partition.method == method
    }
    found = program.methods[method]
    return Code(found.name, found.graphs[1:], partitions, delegate, prepared, max_turns)


# Importing torch while weights are packed


def import_beside_packing(
    delegates: Iterable[int], handle_of: Callable[[int], Handle]
) -> None:
    """Pack the weights of partitions while another thread imports torch.

    Errors are suppressed: the same errors occur again when the graph is bound, and are
    then reported with the instruction that needed the import or the weights.

    Args:
        delegates: the numbers of the partitions that the graph runs.
        handle_of: returns the handle of a partition by its number.
    """
    if "torch" in sys.modules:
        return
    importing = threading.Thread(target=_import_kernels, name="import torch")
    importing.start()
    try:
        with suppress(KvcError):
            for number in delegates:
                handle_of(number).pack()
    finally:
        importing.join()


def _import_kernels() -> None:
    with suppress(Exception):
        load_kernels()


# Frames that serve several sessions


def may_move(graph: Graph, code: Code) -> bool:
    """Tell whether native steps alone may use the states of a graph.

    If so, a `Mover` may be made for its frames; the steps of a frame tell for certain.
    """
    if needs_torch(graph, code.blocks):
        return False
    for instruction in graph.instructions:
        if instruction.op == DELEGATE:
            (block,) = read_control(instruction.op, instruction.arguments).blocks
            if not code.delegate(code.partitions[block]).moves:
                return False
        elif OPS[instruction.op].aliasing is not Aliasing.VIEW:
            return False
    return True
