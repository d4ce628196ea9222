"""Run a partition that has its operands and results on the host, by a vendor's library.

In: a call of a plan, which has memory that the library sees, and the partition's
arrays. Out: a function that fills that memory, has the library run, and writes what
comes out. Nothing that outlives the partition is written before the run has finished,
so what fails has written nothing. A backend says what it fills in, and what it takes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from kvc.runtime.delegates.host_checks import Writes, checks_of
from kvc.runtime.delegates.partition_memory import partition_memory
from kvc.runtime.execution.array_views import bind_view
from kvc.runtime.execution.executor import Unbegun, fail
from kvc.runtime.execution.values import Values
from kvc.runtime.memory.arenas import Arena
from kvc.runtime.memory.arrays import Array, copy_into, lies_over
from kvc.schema.errors import KvcError
from kvc.schema.frozen import frozen
from kvc.schema.graph import Constant, Graph, Ref
from kvc.schema.model import Block
from kvc.schema.ops import OPS, Aliasing

# What of a partition lies on the host, where a library of another process runs it.


Check = tuple[int, Callable[[], None]]


def host_values(
    graph: Graph,
    sizes: Mapping[str, int],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    arena: Arena,
    constant: Callable[[int], Array],
) -> tuple[Values, Sequence[Check]]:
    """Return the values of a partition, and its checks.

    Args:
        graph: of the partition.
        sizes: of the program's symbols.
        inputs: arrays of the graph's inputs.
        outputs: likewise.
        arena: scratch memory of the context, which the values are laid out over.
        constant: returns named data.
    """
    memory = partition_memory(graph, sizes, inputs, outputs, arena, constant)
    values = Values(graph, sizes, memory)
    _place_views(graph, values)
    return values, checks_of(graph, values, sizes)


def _place_views(graph: Graph, values: Values) -> None:
    """Place the views of what the host has."""
    constants = (isinstance(each.storage, Constant) for each in graph.values)
    known = {*graph.inputs, *(i for i, constant in enumerate(constants) if constant)}
    for instruction in graph.instructions:
        first = instruction.arguments[0] if instruction.arguments else None
        view = OPS[instruction.op].aliasing is Aliasing.VIEW
        if view and isinstance(first, Ref) and first.value in known:
            bind_view(instruction, values)
            known |= {*instruction.results}


# Run a partition that has its operands and results on the host, by a vendor's
# library.


# Of each batch row: the first row of what was made, the first slot, how many.
Runs = Sequence[Sequence[tuple[int, int, int]]]


@frozen
class Handed:
    """A result that the host has already: its index, and the value that it is."""

    output: int
    value: int


class HandsOn(Protocol):
    """A plan."""

    @property
    def handed(self) -> tuple[Handed, ...]:
        """Return the results that need no run."""


PlanT = TypeVar("PlanT", bound=HandsOn, covariant=True)


class PlanCall(Protocol[PlanT]):
    """A plan bound to memory of its inputs and outputs."""

    @property
    def plan(self) -> PlanT:
        """Return what it runs."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Return the memory of inputs and outputs, by name."""

    def run(self) -> None:
        """Make the outputs of the inputs."""

    def close(self) -> None:
        """Give it back."""


class HostRun(ABC, Generic[PlanT]):
    """A partition and the arrays that it is bound to."""

    def __init__(
        self,
        call: PlanCall[PlanT],
        method: str,
        block: Block,
        sizes: Mapping[str, int],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        arena: Arena,
        constant: Callable[[int], Array],
    ) -> None:
        """Bind a partition.

        Args:
            call: of the plan of these sizes.
            method: the name of its method.
            block: its code.
            sizes: of the program's symbols.
            inputs: arrays of the graph's inputs.
            outputs: likewise, written by `run`.
            arena: scratch memory of the context, which the values are laid out over.
            constant: returns named data.
        """
        graph = block.graph
        values, checks = host_values(graph, sizes, inputs, outputs, arena, constant)
        self._call, self._method, self._steps = call, method, graph.instructions
        self._read, self._outputs, self._checks = values.array, outputs, checks
        self._at = 0  # the instruction that is to blame

    def run(self) -> None:
        """Run the partition once.

        Raises:
            Unbegun: from what went wrong before anything was written.
        """
        self._at = 0
        try:
            for at, check in self._checks:
                self._at = at
                check()
            self._at = 0
            write = self._compute()
            handed = [
                (each.output, self._read(each.value).copy())
                for each in self._call.plan.handed
            ]
        except Exception as error:
            try:
                fail(self._method, self._at, self._steps[self._at], error)
            except KvcError as told:
                raise Unbegun from told
        for output, array in handed:
            copy_into(self._outputs[output], array)
        write()

    @abstractmethod
    def _compute(self) -> Callable[[], None]:
        """Do all that may fail; return what then writes the results."""

    def _rows(self, cache: int, writes: Writes) -> Runs:
        """Return where the new rows of a cache go, by batch row."""
        return [
            writes.runs(self._read, row) for row in range(self._read(cache).shape[0])
        ]

    def _write_rows(self, output: int, cache: int, made: Array, runs: Runs) -> None:
        """Write rows of what was made to a cache's new content, the old one elsewhere.

        Args:
            output: index of the new content, [batch, heads, slots, width].
            cache: value of the old content, of the same shape.
            made: [batch, heads, rows, width].
            runs: which rows go where.
        """
        old, target = self._read(cache), self._outputs[output]
        if not lies_over(old, target):
            copy_into(target, old)
        for row, parts in enumerate(runs):
            for first, slot, count in parts:
                new = made[row, :, first : first + count]
                np.copyto(target[row, :, slot : slot + count], new)
