"""`FixedPointHandle`: runs partitions of fixed-point backends with kvc's own kernels.

In: a partition, the grid of each of its floating-point values (the numbers that the
value's integers can represent), and a function that rounds weights. Out: a handle that
computes every instruction in float32 by the ordinary kernels, on operands that lie on
their grids, and rounds each result to its grid. The handle thus defines which numbers
can be stored, and where rounding happens; within an instruction, hardware can round
differently. The handle runs partitions if a backend's library is missing, and tests
compare backends with the handle.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, cast

import numpy as np

from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.stepped import SteppedHandle
from kvc.runtime.execution.delegate import Workspace, on_host
from kvc.runtime.memory.arrays import Array
from kvc.runtime.states.owner import Buffer
from kvc.schema.backends.grids import Floats
from kvc.schema.dtypes import DType
from kvc.schema.graph import Constant
from kvc.schema.model import Delegate, Program
from kvc.schema.ops import OPS, Aliasing

# From a value that is named data, and its numbers, to the stored numbers.
StoreWeight = Callable[[int, Array], Array]


class Rounding(Protocol):
    """A set of numbers that can be stored, such as a `Grid`."""

    def rounded(self, numbers: Floats) -> Floats:
        """Return the number of the set that is nearest to each given number."""


class FixedPointHandle(SteppedHandle):
    """Runs a partition, and rounds each value to its grid."""

    def __init__(
        self,
        program: Program,
        partition: Delegate,
        data: Mapping[str, FreeableBuffer],
        grids: Mapping[int, Rounding],
        store_weight: StoreWeight,
    ) -> None:
        """Set the partition's grids.

        Args:
            program: the verified program.
            partition: a partition of the program.
            data: the program's named data.
            grids: the grid of each value, by the value's id in the partition's graph.
                Values without a grid are not rounded. A view lies on the grid of the
                value that it is a view of.
            store_weight: takes the id and the numbers of a constant, and returns the
                numbers rounded for storage.
        """
        super().__init__(program, partition, data)
        graph = self._graph
        self._grids, self._store_weight = grids, store_weight
        self._weights: dict[int, Array] = {}
        self._values = {
            value.storage.name: number
            for number, value in enumerate(graph.values)
            if isinstance(value.storage, Constant)
        }
        made = {
            value
            for step in graph.instructions
            if OPS[step.op].aliasing is not Aliasing.VIEW
            for value in step.results
        }
        self._written = {graph.root_of(value) for value in made} & {*graph.inputs}

    def constant(self, name: int) -> Array:
        """Return named data with its numbers rounded by `store_weight`."""
        if name not in self._weights:
            found = super().constant(name)
            if found.dtype == DType.FLOAT32.numpy:
                found = self._store_weight(self._values[name], found)
            self._weights[name] = found
        return self._weights[name]

    def prepare(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        workspace: Workspace,
        sizes: Mapping[str, int],
    ) -> Callable[[], None]:
        """Bind the partition's code to memory; see `Handle.prepare`.

        Inputs that the code does not write are copied, and the copies are rounded.
        """
        copies: list[tuple[Array, Array]] = []
        given: list[Buffer] = []
        for value, array in zip(self._graph.inputs, on_host(inputs), strict=True):
            if value in self._grids and value not in self._written:
                copies.append((np.empty_like(array), array))
                given.append(copies[-1][0])
            else:
                given.append(array)
        run = super().prepare(given, outputs, workspace, sizes)
        return partial(_run_on_copies, copies, run)

    def reached(self, value: int, array: Array) -> None:
        """Round a value that has just been computed to its grid, in place."""
        grid = self._grids.get(value)
        if grid is not None and array.size:
            array[...] = grid.rounded(cast(Floats, array))


def _run_on_copies(
    copies: Sequence[tuple[Array, Array]], run: Callable[[], None]
) -> None:
    for own, given in copies:
        own[...] = given
    run()
