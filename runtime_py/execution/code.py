"""`Code`: what binding the graphs of a method needs besides memory."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field

from kvc.runtime.execution.delegate import Handle
from kvc.runtime.execution.dependents import Dependence
from kvc.runtime.kernels.kernel import Kernel
from kvc.runtime.kernels.table import load_kernels
from kvc.schema.errors import KvcError
from kvc.schema.frozen import frozen
from kvc.schema.graph import Graph
from kvc.schema.model import Program

Prepared = dict[tuple[str, int], Kernel]


@frozen
class Code:
    """A method's blocks, and what runs instructions; for all frames, in every context.

    Attributes:
        method: its name, for messages.
        blocks: their graphs.
        partitions: of the blocks that delegates run, the number of the delegate.
        delegate: the handle of a delegate, by this number; made on first need.
        max_turns: the most that a `kvc::while` may run, None for no limit.
        prepared: kernels made for one constant, by op and name; filled as graphs are
            bound.
        dependence: what depends on sizes, by graph; filled as frames are bound again.
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
    blocks = found.graphs[1:]
    return Code(found.name, blocks, partitions, delegate, prepared, max_turns)


# Pack weights in the first call of a process while torch is being imported.


def import_beside_packing(
    delegates: Iterable[int], handle_of: Callable[[int], Handle]
) -> None:
    """Import torch and its kernels, and pack what delegates will need meanwhile.

    What fails here is left to who binds the graph: it fails there again, and is told
    with its place.

    Args:
        delegates: numbers of those that the graph calls.
        handle_of: makes one ready.
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
