"""A function of Core AI, as plain values: what the process of `worker.py` builds.

In: what `translation.py` makes of a block. Out: the same as JSON. All tensors have
names and fixed shapes; dtypes are float32, float16, int32 and bool.
"""

from collections.abc import Mapping

import numpy as np

from kvc.runtime.memory.arrays import Array
from kvc.schema.frozen import frozen

Shape = tuple[int, ...]
Fact = int | float | str | tuple[int, ...]


@frozen
class Tensor:
    """What is known of a tensor."""

    dtype: str
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Return how many bytes it has."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


@frozen
class Step:
    """An operator: `worker.py` lists them."""

    op: str
    inputs: tuple[str, ...]
    output: str
    facts: Mapping[str, Fact]


@frozen
class Weight:
    """A constant of the program: named data, in a dtype of Core AI's."""

    name: str
    data: int
    dtype: str


@frozen
class State:
    """Memory of the caller's that a call changes.

    Attributes:
        name: of its old content, which is an input.
        after: tensor that is its new content.
    """

    name: str
    after: str


@frozen
class Function:
    """A function.

    Attributes:
        name: unique in the asset.
        tensors: all that has a name.
        inputs: names, in order.
        states: in order; their names are no inputs.
        outputs: by the name that a caller knows, the tensor that it is.
        weights: constants of the program.
        constants: small ones, with their numbers.
        steps: in running order.
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
        """Return what a call gives or takes: inputs, states, outputs, by name."""
        given = [*self.inputs, *(state.name for state in self.states)]
        found = {name: self.tensors[name] for name in given}
        return found | {n: self.tensors[made] for n, made in self.outputs.items()}

    def as_json(self, places: Mapping[Weight, int]) -> dict[str, object]:
        """Return it for `json`; `places` are the offsets of weights in their file."""
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
