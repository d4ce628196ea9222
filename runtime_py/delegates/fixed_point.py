"""`FixedPointHandle`: what a backend of fixed point computes, up to its own rounding.

In: a partition, the grid of each of its floating-point values, and how its weights are
stored. Out: a handle that computes every instruction in float32 by the ordinary
kernels, on operands that lie on their grids, and rounds what it makes to the grid of
the result. So it states which numbers can be stored, and where they are rounded;
within an instruction, hardware rounds as it likes. It is the reference of backends
whose library is missing, and what tests of backends compare with.
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

# From a value that is named data, and its numbers, to the numbers that are stored.
StoreWeight = Callable[[int, Array], Array]


class Rounding(Protocol):
    """The numbers that can be stored; a `Grid` is one."""

    def rounded(self, numbers: Floats) -> Floats:
        """Return the nearest of them."""


class FixedPointHandle(SteppedHandle):
    """Runs a partition on numbers of grids."""

    def __init__(
        self,
        program: Program,
        partition: Delegate,
        data: Mapping[str, FreeableBuffer],
        grids: Mapping[int, Rounding],
        store_weight: StoreWeight,
    ) -> None:
        """Take the grids.

        Args:
            program: verified.
            partition: of it.
            data: the program's.
            grids: by value of the partition's graph; values without one are left as
                they are. Views lie on the grid of what they are views of.
            store_weight: rounds the float32 constants.
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
        """Return named data as it is stored."""
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
        """Bind the code; see `Handle.prepare`.

        Inputs that the code does not write are rounded in a copy.
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
        """Round a value."""
        grid = self._grids.get(value)
        if grid is not None and array.size:
            array[...] = grid.rounded(cast(Floats, array))


def _run_on_copies(
    copies: Sequence[tuple[Array, Array]], run: Callable[[], None]
) -> None:
    for own, given in copies:
        own[...] = given
    run()
