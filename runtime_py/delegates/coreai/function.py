"""A function of Core AI as plain values, which the subprocess of `worker.py` builds.

In: the result of `translation.py` for a block. Out: the function as JSON. All tensors
have names and fixed shapes; dtypes are float32, float16, int32 and bool.
"""

from collections.abc import Mapping

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.schema.frozen import frozen

Shape = tuple[int, ...]
Fact = int | float | str | tuple[int, ...]


@frozen
class Tensor:
    """The dtype and shape of a tensor."""

    dtype: str
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@frozen
class Step:
    """An operator with its operands and result; `worker.py` lists the operators."""

    op: str
    inputs: tuple[str, ...]
    output: str
    facts: Mapping[str, Fact]


@frozen
class Weight:
    """A constant of the program: named data, converted to a dtype of Core AI."""

    name: str
    data: int
    dtype: str


@frozen
class State:
    """Memory of the caller that a call changes.

    Attributes:
        name: name of the input that is the old content.
        after: name of the tensor that is the new content.
    """

    name: str
    after: str


@frozen
class Function:
    """A function as data.

    Attributes:
        name: name of the function, unique in the asset.
        tensors: all tensors of the function, by name.
        inputs: names of the inputs, in order.
        states: the states in order; their names are not among `inputs`.
        outputs: the name of each output's tensor, by the caller's name of the output.
        weights: constants that are named data of the program.
        constants: small constants, with their numbers.
        steps: the steps in running order.
    """

    name: str
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    states: tuple[State, ...]
    outputs: Mapping[str, str]
    weights: tuple[Weight, ...]
    constants: Mapping[str, Array]
    steps: tuple[Step, ...]

    @property
    def passed(self) -> Mapping[str, Tensor]:
        """Return the tensors of the function's inputs, states and outputs, by name."""
        given = [*self.inputs, *(state.name for state in self.states)]
        found = {name: self.tensors[name] for name in given}
        return found | {n: self.tensors[made] for n, made in self.outputs.items()}

    def as_json(self, places: Mapping[Weight, int]) -> dict[str, object]:
        """Return the function for `json`; `places` has each weight's file offset."""
        return {
            "name": self.name,
            "tensors": {k: [t.dtype, list(t.shape)] for k, t in self.tensors.items()},
            "inputs": list(self.inputs),
            "states": [[state.name, state.after] for state in self.states],
            "outputs": dict(self.outputs),
            "weights": {weight.name: places[weight] for weight in self.weights},
            "constants": {
                name: array.reshape(-1).tolist()
                for name, array in self.constants.items()
            },
            "steps": [
                [step.op, list(step.inputs), step.output, dict(step.facts)]
                for step in self.steps
            ],
        }
