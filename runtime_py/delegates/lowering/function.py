"""A lowered function: operations on named tensors of fixed shapes, as plain values.

In: the result of the lowering of a partition or method. Out: what a vendor's part
writes into a file, hands to a library, or computes. Dtypes have numpy's names.
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
class Operation:
    """An operation with its operands and its result, by the names of tensors.

    Attributes:
        op: a `Primitive`, or an operation that a vendor's own form of an operator uses.
        inputs: the names of the operands.
        output: the name of the result.
        facts: the settings of the operation, such as an axis.
    """

    op: str
    inputs: tuple[str, ...]
    output: str
    facts: Mapping[str, Fact]


@frozen
class Weight:
    """A constant that is named data of the program, converted to a dtype.

    Attributes:
        name: the name of the constant's tensor.
        data: the id of the named data.
        dtype: the dtype of the constant.
    """

    name: str
    data: int
    dtype: str


@frozen
class State:
    """Memory that outlives a call, and that the call changes.

    Attributes:
        name: the name of the tensor that is the old content.
        after: the name of the tensor that is the new content.
    """

    name: str
    after: str


@frozen
class Function:
    """A lowered function.

    Attributes:
        name: the function's name, unique in its file.
        tensors: the dtype and shape of each tensor, by the tensor's name.
        inputs: the names of the inputs, in order.
        states: the states in order; their names are not among `inputs`.
        outputs: the tensor of each output, by the caller's name of the output.
        weights: constants that are named data of the program.
        constants: the elements of the small constants, by the constant's name.
        operations: the operations in running order.
    """

    name: str
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    states: tuple[State, ...]
    outputs: Mapping[str, str]
    weights: tuple[Weight, ...]
    constants: Mapping[str, Array]
    operations: tuple[Operation, ...]

    @property
    def passed(self) -> Mapping[str, Tensor]:
        """Return the types of the inputs, states and outputs of a call, by name."""
        given = [*self.inputs, *(state.name for state in self.states)]
        found = {name: self.tensors[name] for name in given}
        return found | {n: self.tensors[made] for n, made in self.outputs.items()}
