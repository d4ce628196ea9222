"""Check the inputs of a call, and derive the sizes of symbols from them.

In: declared types, the leaves of a call's arguments, the sizes that a session fixed.
Out: arrays of the declared dtypes over the caller's own memory, without a copy; whether
any input was a torch tensor; and the size of every symbol, checked against the symbol's
bounds and against the declared dims of all inputs. Row lengths, for methods that take
them, are the numbers of real tokens in each row; if a call passes none, all tokens are
real.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kvc.runtime.memory.arrays import Array, is_tensor, tensor_as_array
from kvc.runtime.memory.growing import GrowingArray
from kvc.runtime.states.row_range import RowRange
from kvc.schema.dtypes import DType
from kvc.schema.errors import CallMismatch, InputMismatch
from kvc.schema.frozen import frozen
from kvc.schema.model import Method
from kvc.schema.trees import bind_call
from kvc.schema.types import (
    Symbol,
    TensorType,
    evaluate,
    settle_symbol,
    symbols_of,
)

Shape = tuple[int, ...]


@frozen
class InputSignature:
    """The names and types of a method's inputs.

    Attributes:
        method: the method's name, for messages.
        names, types, dtypes: the name, type and numpy dtype of each input.
        symbols: the program's symbols by name.
    """

    method: str
    names: Sequence[str]
    types: Sequence[TensorType]
    dtypes: Sequence["np.dtype[np.generic]"]
    symbols: Mapping[str, Symbol]

    def solve(
        self, shapes: Sequence[Shape], fixed: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the size of each symbol of a call.

        Args:
            shapes: the actual shape of each input.
            fixed: sizes that are known before the call.

        Raises:
            InputMismatch: an input has a wrong rank, a size is out of bounds, or two
                dims give different sizes for one symbol.
        """
        sizes = dict(fixed)
        for index, shape in enumerate(shapes):
            if len(shape) != len(self.types[index].dims):
                raise self._mismatch(index, shape, "")
            for dim, size in zip(self.types[index].dims, shape, strict=True):
                settle_symbol(dim, size, sizes)
        for index, shape in enumerate(shapes):
            self._check(index, shape, sizes)
        return sizes

    def describe(self, index: int) -> str:
        """Return the type of input `index` as text, with the bounds of its symbols."""
        declared = self.types[index]
        bounds = [self.symbols[name] for name in symbols_of(declared.dims)]
        limits = ", ".join(f"{s.name} in {s.allowed}" for s in bounds)
        return f"{declared} with {limits}" if limits else str(declared)

    def _check(self, index: int, shape: Shape, sizes: Mapping[str, int]) -> None:
        declared = self.types[index]
        used = symbols_of(declared.dims)
        for name in used:
            if name not in sizes:
                raise self._mismatch(index, shape, f" (no input determines {name})")
            if not self.symbols[name].takes(sizes[name]):
                raise self._mismatch(index, shape, "")
        if declared.shape(sizes) != shape:
            settled = ", ".join(f"{name} = {sizes[name]}" for name in used)
            raise self._mismatch(index, shape, f" (here {settled})" if settled else "")

    def _mismatch(self, index: int, shape: Shape, note: str) -> InputMismatch:
        return InputMismatch(
            method=self.method,
            input=self.names[index],
            expected=self.describe(index) + note,
            found=str(TensorType(self.types[index].dtype, shape)),
        )


@frozen
class Inputs:
    """The inputs of one call.

    Attributes:
        leaves: the arguments as the caller passed them.
        arrays: numpy arrays over the memory of `leaves`.
        shapes: the shapes of `arrays`.
        as_tensors: whether any leaf was a torch tensor; results are then tensors too.
        left_out: whether the caller passed no row lengths; if so, `arrays` has a
            substitute for them.
        rows: the rows of the session that the call is for, None for all.
    """

    leaves: Sequence[object]
    arrays: tuple[Array, ...]
    shapes: tuple[tuple[int, ...], ...]
    as_tensors: bool
    left_out: bool = False
    rows: RowRange | None = None


def take_inputs(
    signature: InputSignature,
    leaves: Sequence[object],
    left_out: bool = False,
    rows: RowRange | None = None,
) -> Inputs:
    """Check that a call's inputs are arrays or tensors of the declared dtypes.

    Raises:
        InputMismatch: an input is not an array or tensor, or does not have the declared
            dtype.
    """
    arrays: list[Array] = []
    shapes: list[tuple[int, ...]] = []
    as_tensors = False
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, np.ndarray):
            as_tensors |= is_tensor(leaf)
            leaf = _as_array(signature, index, leaf)
        if leaf.dtype != signature.dtypes[index]:
            raise _mismatch(signature, index, _describe(leaf))
        arrays.append(leaf)
        shapes.append(leaf.shape)
    return Inputs(leaves, tuple(arrays), tuple(shapes), as_tensors, left_out, rows)


def _as_array(signature: InputSignature, index: int, leaf: object) -> Array:
    if isinstance(leaf, GrowingArray):
        return leaf.array
    if is_tensor(leaf):
        try:
            return tensor_as_array(leaf)  # type: ignore[arg-type]  # is_tensor says so
        except (TypeError, RuntimeError) as error:
            found = f"a tensor that numpy cannot view ({error})"
            raise _mismatch(signature, index, found) from error
    advice = "pass a numpy array or a torch tensor"
    raise _mismatch(signature, index, f"a Python {type(leaf).__name__}; {advice}")


def _describe(array: Array) -> str:
    dtype = DType.from_numpy(array.dtype)
    label = dtype.label if dtype is not None else str(array.dtype)
    return f"{label}[{', '.join(map(str, array.shape))}]"


def _mismatch(signature: InputSignature, index: int, found: str) -> InputMismatch:
    return InputMismatch(
        method=signature.method,
        input=signature.names[index],
        expected=signature.describe(index),
        found=found,
    )


@frozen
class RowLengthsInput:
    """The input of a method with its row lengths, int64 or bool [batch].

    Attributes:
        method, name: the names of the method and of the input, for messages.
        leaf: the index of the input among the method's inputs.
        type: the declared type.
        beside: a different input, and the axis of that input whose size is the number
            of rows; None if no input has such an axis.
    """

    method: str
    name: str
    leaf: int
    type: TensorType
    beside: tuple[int, int] | None

    def stand_in(
        self, leaves: Sequence[object], sizes: Mapping[str, int]
    ) -> Array | None:
        """Return an array to use as row lengths if the caller passes none.

        Returns None if the number of rows is unknown. `sizes` holds the size of each
        symbol that the session has fixed.
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
        """Return the real tokens of `tokens` [batch, seq], flat, without padding.

        Return `tokens` itself if there is not one row length for each row.
        """
        row_lengths = inputs.arrays[self.leaf]
        if row_lengths.shape != tokens.shape[:1]:
            return tokens
        places = np.arange(tokens.shape[1])
        counted: Array = tokens[places < row_lengths.astype(np.int64)[:, None]]
        return counted

    def read(self, inputs: Inputs, most: int) -> tuple[int, ...]:
        """Return the number of real tokens in each row, at most `most`.

        If the caller passed no row lengths, every row has the length `most`.

        Raises:
            InputMismatch: a length is negative, or exceeds the number of tokens.
        """
        row_lengths = inputs.arrays[self.leaf]
        if inputs.left_out:
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


@frozen
class TokenInput:
    """The first input of a method with a role: tokens int64 [batch, seq].

    Attributes:
        method, name: the names of the method and of the input, for messages.
        vocabulary: the vocabulary size; every token must be less. None if unknown.
    """

    method: str
    name: str
    vocabulary: int | None

    def check_all(self, inputs: Inputs, row_lengths: RowLengthsInput | None) -> None:
        """Check that the tokens of a call, except padding, are in the vocabulary.

        Raises:
            InputMismatch: as `check`.
        """
        if len(inputs.shapes[0]) == 2:
            tokens = inputs.arrays[0]
            if row_lengths is not None and not inputs.left_out:
                tokens = row_lengths.without_padding(tokens, inputs)
            self.check(tokens)

    def check(self, tokens: Array) -> None:
        """Check that every token is in the vocabulary.

        Raises:
            InputMismatch: a token is not in the vocabulary; the message names the
                token.
        """
        if self.vocabulary is None or tokens.size == 0:
            return
        single = tokens.size == 1
        ends = (tokens.item(),) if single else (tokens.min(), tokens.max())
        for token in map(int, ends):
            if not 0 <= token < self.vocabulary:
                raise InputMismatch(
                    method=self.method,
                    input=self.name,
                    expected=f"tokens of 0 to {self.vocabulary - 1}",
                    found=f"token {token}",
                )


def bind_inputs(
    method: Method,
    signature: InputSignature,
    row_lengths: RowLengthsInput | None,
    call: tuple[Sequence[object], Mapping[str, object]],
    sizes: Mapping[str, int],
    rows: RowRange | None = None,
) -> Inputs:
    """Bind the arguments of a call to the inputs of a method, as Python binds them.

    Args:
        method: the method.
        signature: the names and types of its inputs.
        row_lengths: its input of row lengths, which are made if the caller passes none.
        call: the arguments by position and by name.
        sizes: the size of each symbol that the session has fixed.
        rows: the rows of the session that the call is for, None for all.

    Raises:
        CallMismatch: the arguments are not nested as those of the compiled method.
        InputMismatch: an input has another dtype, or is no array.
    """
    optional = None if row_lengths is None else row_lengths.leaf
    try:
        leaves = bind_call(method.input_tree, *call, optional)
    except ValueError as error:
        raise CallMismatch(method=method.name, reason=str(error)) from error
    left_out = row_lengths is not None and leaves[row_lengths.leaf] is None
    if row_lengths is not None and left_out:
        leaves[row_lengths.leaf] = row_lengths.stand_in(leaves, sizes)
    return take_inputs(signature, leaves, left_out, rows)
