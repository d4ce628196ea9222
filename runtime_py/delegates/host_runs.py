"""Run a partition by a vendor's library, with operands and results on the host.

In: a call of a plan, whose memory is shared with the library, and the partition's
arrays. Out: a function that fills this memory, runs the library, and writes the
results. Nothing that outlives the partition is written before the run has finished, so
a failed run has written nothing. Subclasses define the inputs and results.
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

# Values of a partition that lie on the host while a library runs the partition.


# The index of an instruction, and a function that raises if a value is wrong.
Check = tuple[int, Callable[[], None]]


def known_values(graph: Graph) -> set[int]:
    """Return the ids of the inputs and constants of a graph."""
    stored = enumerate(graph.values)
    constants = {i for i, each in stored if isinstance(each.storage, Constant)}
    return constants | {*graph.inputs}


def host_values(
    graph: Graph,
    sizes: Mapping[str, int],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    arena: Arena,
    constant: Callable[[int], Array],
) -> tuple[Values, Sequence[Check]]:
    """Return the values of a partition, and the checks of these values.

    Views of inputs and constants are bound to their arrays.

    Args:
        graph: the graph of the partition.
        sizes: the sizes of the program's symbols.
        inputs: arrays of the graph's inputs.
        outputs: arrays of the graph's outputs.
        arena: scratch memory of the context, in which intermediate values lie.
        constant: returns named data by id.

    Returns:
        The values; and the checks, each with the index of its instruction.
    """
    memory = partition_memory(graph, sizes, inputs, outputs, arena, constant)
    values = Values(graph, sizes, memory)
    known = known_values(graph)  # and, below, views of these
    for instruction in graph.instructions:
        first = instruction.arguments[0] if instruction.arguments else None
        view = OPS[instruction.op].aliasing is Aliasing.VIEW
        if view and isinstance(first, Ref) and first.value in known:
            bind_view(instruction, values)
            known |= {*instruction.results}
    return values, checks_of(graph, values, sizes)


# Run a partition by a vendor's library.


# For each batch row: first row of the result, first slot, and number of rows.
Runs = Sequence[Sequence[tuple[int, int, int]]]


@frozen
class Handed:
    """A result that the host has without a run of the library.

    Attributes:
        output: index of the result among the graph's outputs.
        value: id of the value that is the result.
    """

    output: int
    value: int


class HandsOn(Protocol):
    """A plan that lists results that the host has without a run of the library."""

    @property
    def handed(self) -> tuple[Handed, ...]:
        """Return the results that the host has without a run of the library."""


PlanT = TypeVar("PlanT", bound=HandsOn, covariant=True)


class PlanCall(Protocol[PlanT]):
    """A plan bound to memory for its inputs and outputs."""

    @property
    def plan(self) -> PlanT:
        """Return the plan that is bound."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Return the memory of inputs and outputs, by name."""

    def run(self) -> None:
        """Compute the outputs from the inputs."""

    def close(self) -> None:
        """Release the memory of inputs and outputs."""


class HostRun(ABC, Generic[PlanT]):
    """A partition that is bound to arrays of the host."""

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
        """Bind a partition to arrays.

        Args:
            call: a call of the plan for `sizes`.
            method: the name of the partition's method.
            block: the code of the partition.
            sizes: the sizes of the program's symbols.
            inputs: arrays of the graph's inputs.
            outputs: arrays of the graph's outputs, written by `run`.
            arena: scratch memory of the context, in which intermediate values lie.
            constant: returns named data by id.
        """
        graph = block.graph
        values, checks = host_values(graph, sizes, inputs, outputs, arena, constant)
        self._call, self._method, self._steps = call, method, graph.instructions
        self._read, self._outputs, self._checks = values.array, outputs, checks
        self._at = 0  # index of the instruction to name in errors

    def run(self) -> None:
        """Run the partition once.

        Raises:
            Unbegun: an error occurred before anything was written; the error is the
                cause of the exception.
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
        """Check, compute, and return a function that writes the results.

        All that can fail happens before the function is returned.
        """

    def _rows(self, cache: int, writes: Writes) -> Runs:
        """Return the runs of a cache's new rows for each batch row; see `Writes.runs`.

        `cache` is the id of the value that is the cache.
        """
        return [
            writes.runs(self._read, row) for row in range(self._read(cache).shape[0])
        ]

    def _write_rows(self, output: int, cache: int, made: Array, runs: Runs) -> None:
        """Write new rows to an output; copy the cache's old content to all other slots.

        Args:
            output: index of the output that is the cache's new content, [batch, heads,
                slots, width].
            cache: id of the value that is the cache's old content, of the same shape.
            made: a tensor with the new rows, [batch, heads, rows, width].
            runs: the runs of each batch row: first row in `made`, first slot, count.
        """
        old, target = self._read(cache), self._outputs[output]
        if not lies_over(old, target):
            copy_into(target, old)
        for row, parts in enumerate(runs):
            for first, slot, count in parts:
                new = made[row, :, first : first + count]
                np.copyto(target[row, :, slot : slot + count], new)
