"""All sizes that the tensors of a partition can have together."""

import pytest

from kvc.schema.buckets import fixed_sizes
from kvc.schema.dtypes import DType
from kvc.schema.errors import LimitExceeded
from kvc.schema.types import Symbol, TensorType, affine


def test_sizes_are_all_combinations_of_the_symbols_that_are_used():
    symbols = [Symbol("a", 1, 4, (1, 4)), Symbol("b", 1, 4, (2, 3)), Symbol("c", 0, 9)]
    types = [TensorType(DType.FLOAT32, (affine(0, {name: 1}),)) for name in "ab"]
    assert fixed_sizes(symbols, types) == (
        *({"a": 1, "b": 2}, {"a": 1, "b": 3}),
        *({"a": 4, "b": 2}, {"a": 4, "b": 3}),
    )
    assert fixed_sizes(symbols, []) == ({},)
    free = TensorType(DType.FLOAT32, (affine(0, {"c": 1}),))
    assert fixed_sizes(symbols, [*types, free]) is None


def test_combinations_without_end_are_refused_and_not_made():
    """A small file may name 64 sizes of each of many symbols."""
    names = [f"s{number}" for number in range(40)]
    symbols = [Symbol(name, 1, 64, tuple(range(1, 65))) for name in names]
    types = [TensorType(DType.FLOAT32, (affine(0, {name: 1}),)) for name in names]
    assert len(fixed_sizes(symbols, types[:2]) or ()) == 64**2
    with pytest.raises(LimitExceeded, match=r"buckets in one partition.* of 65536"):
        fixed_sizes(symbols, types)
