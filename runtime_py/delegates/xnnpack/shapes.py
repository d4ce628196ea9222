"""Shapes of tensors, and how each was derived."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.delegates.xnnpack.nodes import Dims, Tensor
from kvc.schema.types import evaluate

RESHAPES: Final = frozenset(
    {"static_reshape", "fuse_dims", "split_dim", "static_expand_dims"}
)


def unshaped(x: Tensor) -> Tensor:
    """Return the tensor whose elements are x's in the same order, before reshapes."""
    while x.producer is not None and x.producer.function in RESHAPES:
        (x,) = x.producer.inputs
    return x


def order_of(x: Tensor) -> list[int] | None:
    """Return the order in which x has the axes of what it was transposed from."""
    if x.producer is None or x.producer.function != "static_transpose":
        return None
    order = x.producer.arguments[1]
    assert isinstance(order, ctypes.Array)
    return list(order)


def broadcast(a: Dims, b: Dims) -> Dims:
    """Return the shape that two shapes broadcast to."""
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + a
    right = (1,) * (rank - len(b)) + b
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def size_array(sizes: Sequence[int]) -> "ctypes.Array[ctypes.c_size_t]":
    """Return sizes as the library takes them."""
    return (ctypes.c_size_t * len(sizes))(*sizes)


def signed_array(numbers: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """Return numbers with signs as the library takes them."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


def shape_of(dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return dims under sizes."""
    return tuple(evaluate(dim, sizes) for dim in dims)
