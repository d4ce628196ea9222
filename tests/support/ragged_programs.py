"""A program made by hand whose rows bring different numbers of tokens to a call.

A state counts the position of each row, int64 [batch]. Rows are written into a cache
[batch, 3, capacity, 2] at that position; rows that are padding are not written.
"""

from hand_built import I64, LENGTHS, START, Built, adds, program
from stateful_programs import (
    BATCH,
    CAPACITY,
    SEQ,
    Builder,
    counted,
    rows_type,
    state,
    used_symbols,
)

from kvc.schema.dtypes import DType
from kvc.schema.graph import Ref, StateSlot
from kvc.schema.model import Method, StateKind
from kvc.schema.types import Dim, TensorType


def ragged_program() -> Built:
    """Return a program with the methods `write(x, counts)` and `step(x, counts)`.

    The counts of `write` are int64 [batch], those of `step` bool [batch].
    """
    counter, cursor = counted(TensorType(I64, (BATCH,)))
    whole = rows_type(CAPACITY, BATCH, width=2)
    cache = state("cache", whole, StateKind.LINEAR, 2, cursor=0)
    methods = (ragged_method("write", SEQ, I64), ragged_method("step", 1, DType.BOOL))
    symbols = used_symbols("batch", "capacity", "seq")
    return program(methods, symbols=symbols, states=(counter, cache), cursors=[cursor])


def ragged_method(name: str, seq: Dim, dtype: DType) -> Method:
    """Return a method that writes the rows of x into the cache at the position.

    An input of the given dtype, [batch], says how many rows of x count.
    """
    b = Builder()
    x = b.scratch(rows_type(seq, BATCH, width=2))
    given = row_lengths = b.scratch(TensorType(dtype, (BATCH,)))
    position = b.value(TensorType(I64, (BATCH,)), StateSlot(0))
    cache = b.value(rows_type(CAPACITY, BATCH, width=2), StateSlot(1))
    if dtype is not I64:
        cast = b.scratch(TensorType(I64, (BATCH,)))
        row_lengths = b.step("aten::_to_copy", (Ref(given), I64), cast)
    start, lengths = (b.value(TensorType(I64, (BATCH,)), p) for p in (START, LENGTHS))
    operands = Ref(x), Ref(start), 2, "linear", Ref(lengths), 0
    b.over("kvc::cache_update", cache, *operands)
    b.over("aten::add.Tensor", position, Ref(row_lengths), 1)
    return b.method(name, {"x": x, "row_lengths": given}, [x], advances=adds(seq, 1))
