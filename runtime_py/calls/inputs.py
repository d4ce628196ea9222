"""Take what a caller passes as arrays, and check it.

In: the leaves of a call's arguments. Out: arrays of the declared dtypes over the
caller's own memory (nothing is copied here), and whether any of them was a torch
tensor. `sizes.py` checks shapes.
"""

from collections.abc import Sequence

import numpy as np

from kvc.runtime.arrays import Array, is_tensor, tensor_as_array
from kvc.runtime.calls.sizes import Signature
from kvc.runtime.growing import GrowingArray
from kvc.schema.dtypes import DType
from kvc.schema.errors import InputMismatch
from kvc.schema.frozen import frozen


@frozen
class Inputs:
    """The inputs of one call; results are torch tensors when an input was one.

    Attributes:
        leaves: as the caller passed them.
        arrays: over their memory.
        shapes: of the arrays.
        as_tensors: whether any leaf was a torch tensor.
        left_out: whether the call left row lengths out; an array stands for them.
    """

    leaves: Sequence[object]
    arrays: tuple[Array, ...]
    shapes: tuple[tuple[int, ...], ...]
    as_tensors: bool
    left_out: bool = False


def take_inputs(
    signature: Signature, leaves: Sequence[object], left_out: bool = False
) -> Inputs:
    """Check kinds and dtypes of a call's inputs.

    Raises:
        InputMismatch: not an array or tensor, or of another dtype.
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
    return Inputs(leaves, tuple(arrays), tuple(shapes), as_tensors, left_out)


def _as_array(signature: Signature, index: int, leaf: object) -> Array:
    if isinstance(leaf, GrowingArray):
        return leaf.array
    if is_tensor(leaf):
        return _from_tensor(signature, index, leaf)
    advice = "pass a numpy array or a torch tensor"
    raise _mismatch(signature, index, f"a Python {type(leaf).__name__}; {advice}")


def _from_tensor(signature: Signature, index: int, leaf: object) -> Array:
    try:
        return tensor_as_array(leaf)  # type: ignore[arg-type]  # is_tensor says so
    except (TypeError, RuntimeError) as error:
        found = f"a tensor that numpy cannot take ({error})"
        raise _mismatch(signature, index, found) from error


def _describe(array: Array) -> str:
    dtype = DType.from_numpy(array.dtype)
    label = dtype.label if dtype is not None else str(array.dtype)
    return f"{label}[{', '.join(map(str, array.shape))}]"


def _mismatch(signature: Signature, index: int, found: str) -> InputMismatch:
    return InputMismatch(
        method=signature.method,
        input=signature.names[index],
        expected=signature.describe(index),
        found=found,
    )
