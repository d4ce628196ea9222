"""Run a program, and sum up the second moments of the inputs of linear layers.

In: the path of a bundle whose linear layers are partitions. Out: for each weight the
sum of x x' over the input vectors x of the weight's layer. The sums lie in unnamed
temporary files; layers that read the same vectors of n elements share one file of 4 n²
bytes.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from kvc.runtime.calibration.observing import opened
from kvc.runtime.data import FreeableBuffer
from kvc.runtime.delegates.stepped import SteppedHandle
from kvc.runtime.delegates.table import Factory, delegate_of
from kvc.runtime.execution.delegate import Delegate, Options
from kvc.runtime.execution.recording import TimedStep
from kvc.runtime.execution.values import Values
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.program import Program
from kvc.schema import model
from kvc.schema.calibration import LINEAR_LAYERS, Sums
from kvc.schema.errors import CannotWrite, SamplesNotFinite, reason_of
from kvc.schema.graph import Constant, Instruction, Ref

_LINEAR: Final = "aten::linear"
_COLUMNS: Final = 1024  # the columns that are multiplied at once
_PIECE: Final = 1 << 20  # bytes per write


class InputMoments:
    """The sums of x x' over the inputs x of a program's linear layers."""

    def __init__(self) -> None:
        self._sums: dict[frozenset[str], Sums] = {}
        self._methods: dict[frozenset[str], str] = {}

    def add(self, method: str, weights: frozenset[str], inputs: Array) -> None:
        """Add inputs [..., in] of the linear layers with the given weights.

        Raises:
            CannotWrite: the disk has no room for the sums.
        """
        rows = torch.from_numpy(inputs).reshape(-1, inputs.shape[-1])
        if weights not in self._sums:
            self._sums[weights] = _zeros(rows.shape[1])
            self._methods[weights] = method
        sums = torch.from_numpy(self._sums[weights])
        for begin in range(0, len(sums), _COLUMNS):
            end = begin + _COLUMNS
            sums[begin:end].addmm_(rows[:, begin:end].T, rows)

    def by_weight(self) -> Mapping[str, Sums]:
        """Return the sum for each weight; weights with equal inputs share one array.

        Raises:
            SamplesNotFinite: an input, or the square of an input, is NaN or infinite.
        """
        found: dict[str, Sums] = {}
        for weights, sums in self._sums.items():
            if not np.isfinite(sums).all():
                raise SamplesNotFinite(
                    method=self._methods[weights],
                    what="an input multiplied by",
                    place=f" {min(weights)}",
                )
            for name in weights:
                found[name] = found[name] + sums if name in found else sums
        return found


def _zeros(columns: int) -> Sums:
    """Return float32 [columns, columns] of zeros, in an unnamed temporary file.

    Raises:
        CannotWrite: the disk has no room for the file.
    """
    left = 4 * columns * columns
    try:
        with tempfile.TemporaryFile(prefix="kvc-calibrate-") as file:
            while left:  # a sparse file would raise SIGBUS on a full disk
                left -= file.write(bytes(min(left, _PIECE)))
            file.flush()
            return np.memmap(file, np.float32, "r+", shape=(columns, columns))
    except OSError as error:
        path = tempfile.gettempdir()
        raise CannotWrite(path=path, reason=reason_of(error)) from error


class _Handle(SteppedHandle):
    """A partition of linear layers that sums up the moments of the layers' inputs."""

    def __init__(
        self,
        program: model.Program,
        partition: model.Delegate,
        data: Mapping[str, FreeableBuffer],
        moments: InputMoments,
    ) -> None:
        super().__init__(program, partition, data)
        self._add = partial(moments.add, program.methods[partition.method].name)
        self._names = [named.name for named in program.names]

    def before(self, instruction: Instruction, values: Values) -> Sequence[TimedStep]:
        """Sum up the input of a linear layer; see `SteppedHandle.before`.

        If several layers have the same input, only the first layer adds it to the sums.
        """
        reading = [
            one
            for one in self._graph.instructions
            if one.op == _LINEAR and one.arguments[0] == instruction.arguments[0]
        ]
        if instruction is not reading[0]:
            return ()
        names = frozenset(self._weight(one) for one in reading)
        inputs = values.argument(instruction.arguments[0], values.array)
        return [(partial(self._add, names), (inputs,))]

    def _weight(self, instruction: Instruction) -> str:
        weight = instruction.arguments[1]
        assert isinstance(weight, Ref)
        storage = self._graph.values[weight.value].storage
        assert isinstance(storage, Constant)
        return self._names[storage.name]


@contextmanager
def summed(path: Path) -> Iterator[tuple[Program, InputMoments]]:
    """Open a bundle so that its runs sum up the inputs of linear layers.

    Partitions that are not linear layers run as usual.

    Raises:
        FormatError, LoadError: the bundle cannot be read.
    """
    moments = InputMoments()

    class Summing(Delegate):
        def __init__(self, options: Options) -> None:
            self._program = options.program

        def init(
            self, partition: model.Delegate, data: Mapping[str, FreeableBuffer]
        ) -> _Handle:
            return _Handle(self._program, partition, data, moments)

        def packed(self) -> Mapping[str, int]:
            return {}

        def close(self) -> None:
            """Do nothing: no resources are shared."""

    def find_backend(name: str) -> Factory:
        return Summing if name == LINEAR_LAYERS else delegate_of(name)

    with opened(path, find_backend) as program:
        yield program, moments
