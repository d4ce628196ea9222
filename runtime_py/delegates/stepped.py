"""`SteppedHandle`: the reference of a partition, with something done to every value.

In: a partition, as `ReferenceHandle` takes it. Out: a handle that calls `reached` for
each value that lies in memory of its own, as soon as it is there: inputs first, then
what each instruction makes. Views are left out, since they are memory of others.
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
    """Runs a partition by the reference, and shows what each step makes."""

    def reached(self, value: int, array: Array) -> None:
        """Take a value that is there: look at it, or change it in place.

        Args:
            value: its id in the partition's graph.
            array: all of it, and no more.
        """

    def before(self, instruction: Instruction, values: Values) -> Sequence[TimedStep]:
        """Return what is to be done before an instruction: here, nothing."""
        return ()

    def watched(
        self, frame: Frame, sizes: Mapping[str, int], memory: GraphMemory
    ) -> Frame:
        """Return the frame with a step after each value."""
        graph, values = self._graph, Values(self._graph, sizes, memory)
        steps: list[TimedStep] = [
            (self.reached, (value, values.array(value))) for value in graph.inputs
        ]
        places: list[tuple[int, ...]] = [(0,)] * len(steps)
        by_place = _by_place(frame)
        for index, instruction in enumerate(graph.instructions):
            here = [*self.before(instruction, values), *by_place.get(index, ())]
            made = _made(instruction, values)
            here += [(self.reached, (value, array)) for value, array in made]
            steps += here
            places += [(index,)] * len(here)
        return replace(frame, steps=tuple(steps), places=tuple(places))


def _by_place(frame: Frame) -> dict[int, list[TimedStep]]:
    """Return the steps of each instruction; each step is of one alone."""
    found: dict[int, list[TimedStep]] = {}
    for step, (place,) in zip(frame.steps, frame.places, strict=True):
        found.setdefault(place, []).append(step)
    return found


def _made(instruction: Instruction, values: Values) -> Sequence[tuple[int, Array]]:
    """Return what an instruction makes, views left out, and where it lies."""
    match OPS[instruction.op].aliasing:
        case Aliasing.VIEW:
            bind_view(instruction, values)
            return ()
        case Aliasing.UPDATE:
            values.updated(instruction)
            return [(value, values.array(value)) for value in instruction.results]
        case _:
            return [(value, values.written(value)) for value in instruction.results]
