"""`SteppedHandle`: runs a partition by the reference, and calls a hook for every value.

In: a partition, as for `ReferenceHandle`. Out: a handle that calls `reached` for each
value as soon as the value exists: first for the inputs, then for the results of each
instruction. The hook is not called for views, since a view shares the memory of another
value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvc.runtime.delegates.reference import ReferenceHandle
from kvc.runtime.execution.array_views import bind_view
from kvc.runtime.execution.executor import Frame
from kvc.runtime.execution.recording import TimedStep
from kvc.runtime.execution.values import GraphMemory, Values
from kvc.runtime.memory.arrays import Array
from kvc.schema.graph import Instruction
from kvc.schema.ops import OPS, Aliasing


class SteppedHandle(ReferenceHandle):
    """Runs a partition by the reference, and calls a hook for every value."""

    def reached(self, value: int, array: Array) -> None:
        """Inspect a value that has just been computed, or change the value in place.

        Args:
            value: the value's id in the partition's graph.
            array: the whole value.
        """

    def before(self, instruction: Instruction, values: Values) -> Sequence[TimedStep]:
        """Return steps to run before an instruction; none by default."""
        return ()

    def watched(
        self, frame: Frame, sizes: Mapping[str, int], memory: GraphMemory
    ) -> Frame:
        """Return the frame, with a call of `reached` added after each value."""
        graph, values = self._graph, Values(self._graph, sizes, memory)
        steps: list[TimedStep] = [
            (self.reached, (value, values.array(value))) for value in graph.inputs
        ]
        places: list[tuple[int, ...]] = [(0,)] * len(steps)
        # A step belongs to one instruction.
        by_place: dict[int, list[TimedStep]] = {}
        for step, (place,) in zip(frame.steps, frame.places, strict=True):
            by_place.setdefault(place, []).append(step)
        for index, instruction in enumerate(graph.instructions):
            here = [*self.before(instruction, values), *by_place.get(index, ())]
            made = _made(instruction, values)
            here += [(self.reached, (value, array)) for value, array in made]
            steps += here
            places += [(index,)] * len(here)
        return replace(frame, steps=tuple(steps), places=tuple(places))


def _made(instruction: Instruction, values: Values) -> Sequence[tuple[int, Array]]:
    """Return the id and array of each result of an instruction; none for a view."""
    match OPS[instruction.op].aliasing:
        case Aliasing.VIEW:
            bind_view(instruction, values)
            return ()
        case Aliasing.UPDATE:
            values.updated(instruction)
            return [(value, values.array(value)) for value in instruction.results]
        case _:
            return [(value, values.written(value)) for value in instruction.results]
