"""What a graph needs beside memory to be bound: what runs its instructions, its blocks.

It is shared by all frames of a method, in every context.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvc.runtime.binding.dependents import Dependence
from kvc.runtime.delegates.base import Handle
from kvc.runtime.kernels import Kernel
from kvc.schema.model import Graph, Program


@dataclass(frozen=True, slots=True)
class Code:
    """What runs a graph's instructions, looked up on first need.

    Attributes:
        delegate: the handle of a delegate, by its number.
        prepared: kernels made for one constant, by op and name; filled as graphs are
            bound, so that every frame of a graph shares them.
        dependence: what depends on sizes, by graph; filled as frames are bound again.
    """

    delegate: Callable[[int], Handle]
    prepared: dict[tuple[str, int], Kernel] = field(default_factory=dict)
    dependence: dict[int, Dependence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a method.

    Attributes:
        graphs: their code.
        delegates: of those that delegates run, block -> number of the delegate.
    """

    graphs: tuple[Graph, ...] = ()
    delegates: Mapping[int, int] = field(default_factory=dict)


def blocks_of(program: Program, method: int) -> Blocks:
    """Return the blocks of a method of a program."""
    delegates = {
        delegate.block: number
        for number, delegate in enumerate(program.delegates)
        if delegate.method == method
    }
    return Blocks(program.methods[method].graphs[1:], delegates)
