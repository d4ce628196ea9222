"""`Code`: what binding the graphs of a method needs besides memory."""

from collections.abc import Callable, Mapping
from dataclasses import field

from kvc.runtime.binding.dependents import Dependence
from kvc.runtime.delegates.base import Handle
from kvc.runtime.kernels import Kernel
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
