"""Take and check the row lengths of a call: how many tokens of each row are real.

In: a method whose file names such an input, the arguments of a call. Out: a length for
each row. If a call leaves the input out, all tokens of all rows are real.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kvc.runtime.arrays import Array
from kvc.runtime.calls.inputs import Inputs
from kvc.schema.errors import InputMismatch
from kvc.schema.frozen import frozen
from kvc.schema.model import Method
from kvc.schema.types import Dim, TensorType, evaluate, symbols_of


@frozen
class RowLengthsInput:
    """The input of a method with its row lengths, int64 or bool [batch].

    Attributes:
        method, name: of the method and of the input, for messages.
        leaf: its index among the inputs that a caller passes.
        type: as declared.
        beside: another of these and an axis of it whose size is the number of rows,
            None if there is none.
    """

    method: str
    name: str
    leaf: int
    type: TensorType
    beside: tuple[int, int] | None

    def stand_in(
        self, leaves: Sequence[object], sizes: Mapping[str, int]
    ) -> Array | None:
        """Return an array for the row lengths of a call that leaves them out.

        None where nothing says how many rows there are. `sizes` are of the symbols
        that the session has fixed.
        """
        (rows,) = self.type.dims
        dtype = self.type.dtype.numpy
        if symbols_of([rows]) <= sizes.keys():
            return np.zeros(evaluate(rows, sizes), dtype)
        if self.beside is None:
            return None
        leaf, axis = self.beside
        shape = getattr(leaves[leaf], "shape", ())
        return np.zeros(shape[axis] if len(shape) > axis else 0, dtype)

    def without_padding(self, tokens: Array, inputs: Inputs) -> Array:
        """Return the real tokens of [batch, seq]; all if shapes do not fit."""
        row_lengths = inputs.arrays[self.leaf]
        if row_lengths.shape != tokens.shape[:1]:
            return tokens
        places = np.arange(tokens.shape[1])
        counted: Array = tokens[places < row_lengths.astype(np.int64)[:, None]]
        return counted

    def read(self, row_lengths: Array, most: int, left_out: bool) -> tuple[int, ...]:
        """Return the length of each row, which is at most `most`.

        Lengths that were left out are filled in.

        Raises:
            InputMismatch: one is negative, or more than there are tokens.
        """
        if left_out:
            row_lengths[...] = most
        found = tuple(map(int, row_lengths.tolist()))
        for row, count in enumerate(found):
            if not 0 <= count <= most:
                raise InputMismatch(
                    method=self.method,
                    input=self.name,
                    expected=f"row lengths of 0 to {most}, the tokens of this call",
                    found=f"{count} in row {row}",
                )
        return found


def find_row_lengths(method: Method) -> RowLengthsInput | None:
    """Return the input of a method that has the row lengths."""
    leaf = next((a.lengths for a in method.advances if a.lengths is not None), None)
    if leaf is None:
        return None
    types = [method.graph.values[i].type for i in method.graph.inputs]
    (rows,) = types[leaf].dims
    name = method.input_names[leaf]
    return RowLengthsInput(
        method.name, name, leaf, types[leaf], _beside(types, leaf, rows)
    )


def _beside(
    types: Sequence[TensorType], leaf: int, rows: Dim
) -> tuple[int, int] | None:
    """Return an input and its axis that has the rows, other than the row lengths."""
    for i, kind in enumerate(types):
        for axis, dim in enumerate(kind.dims):
            if i != leaf and dim == rows:
                return i, axis
    return None
