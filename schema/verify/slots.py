"""Check the slots for adapters of a program, and the states that say who uses which.

In: a program whose named data, states and methods' signatures have been checked. Out:
nothing, or the first error. A program without slots may have states of any name.
`ops/adapters.py` has the shape rule of the op that reads slots.
"""

from collections.abc import Mapping
from typing import Final

from kvc.schema.adapters import (
    FACTORS,
    GAIN,
    OFFSET,
    PARTS,
    RANKS,
    ROWS,
    SCALES,
    A,
    B,
    slots_of,
)
from kvc.schema.dtypes import DType
from kvc.schema.model import CursorKind, Program, ResetRule, State, StateKind
from kvc.schema.ops.adapters import MATRIX_DTYPES
from kvc.schema.types import Dim, TensorType, affine
from kvc.schema.uses import SLOT
from kvc.schema.verify.limits import Reporter
from kvc.schema.verify.states import fixed_symbols

_BATCH: Final = "batch"  # the symbol for the number of a session's rows
_LEAST: Final = 2  # slot 0, which is never filled, and one for an adapter


def check_slots(program: Program, report: Reporter) -> None:
    """Check the slots of each layer, and the states of a program with slots.

    Raises:
        BadProgram: a part is missing or has a wrong type, or a state does not fit.
    """
    for named in program.names:
        path, _, part = named.name.rpartition(".")
        if named.format == SLOT and not (path and part in PARTS):
            report.fail(f"named data {named.name!r}", "it is no part of slots")
    layers = slots_of(program)
    if not layers:  # though methods may adapt others: they run none of the layers
        return
    adapting = any(method.adapts is not None for method in program.methods)
    report.require(adapting, "slots", "no method is for rows with adapters")
    counts = set()
    for path, parts in layers.items():
        kinds = {part: named.type for part, (_, named) in parts.items()}
        counts.add(_check_layer(path, kinds, report))
    enough = len(counts) == 1 and min(counts) >= _LEAST
    what = f"layers have {sorted(counts)}: one number for all, at least {_LEAST}"
    report.require(enough, "slots", what)
    _check_states(program, report)


def _check_layer(path: str, kinds: Mapping[str, TensorType], report: Reporter) -> int:
    """Check the types of the parts of one layer, and return the number of its slots."""
    where = f"slots of {path!r}"
    for part in (B, RANKS):
        report.require(part in kinds, where, f"there is no {part}")
    b = kinds[B]
    matrices = b.dtype in MATRIX_DTYPES and len(b.dims) == 3
    report.require(matrices, where, f"{B} is {b}")
    for part, wanted in _expected(b, kinds.get(A, b)).items():
        found = kinds.get(part, wanted)
        report.require(found == wanted, where, f"{part} is {found}, expected {wanted}")
    scaled = (FACTORS in kinds) == (b.dtype is DType.INT8)
    report.require(scaled, where, f"{FACTORS} and int8 matrices go together")
    both = (GAIN in kinds) == (OFFSET in kinds)
    report.require(both, where, f"{GAIN} and {OFFSET} go together")
    count = b.dims[0]
    assert isinstance(count, int), "named data has no symbols"
    return count


def _expected(b: TensorType, a: TensorType) -> dict[str, TensorType]:
    """Return the types of the parts that a layer has beside `adapter_b`."""
    count, rank, out = b.dims
    float32 = DType.FLOAT32
    return {
        A: TensorType(b.dtype, (count, rank, *a.dims[-1:])),
        RANKS: TensorType(DType.INT64, (count,)),
        FACTORS: TensorType(float32, (count, rank)),
        GAIN: TensorType(float32, (count, out)),
        OFFSET: TensorType(float32, (count, out)),
    }


def _check_states(program: Program, report: Reporter) -> None:
    """Check the two states that only sessions write."""
    numbers = {state.name: number for number, state in enumerate(program.states)}
    rows = _rows_of(program)
    for name, dtype in ((ROWS, DType.INT64), (SCALES, DType.FLOAT32)):
        where = f"state {name!r}"
        report.require(name in numbers, "slots", f"there is no {where}")
        state = program.states[numbers[name]]
        what = f"it is no plain state {dtype.name.lower()} [rows] that starts as zeros"
        report.require(_is_given(state, dtype), where, what)
        of_rows = rows in (1, *state.type.dims)  # one for all, or one for each
        report.require(of_rows, where, f"{state.type} of {rows} rows")
        for method in program.methods:
            writes = numbers[name] in method.writes
            report.require(not writes, where, f"method {method.name!r} writes it")
    first, second = (program.states[numbers[name]].type for name in (ROWS, SCALES))
    what = f"{first} and {second} have not the same rows"
    report.require(first.dims == second.dims, "slots", what)


def _is_given(state: State, dtype: DType) -> bool:
    """Tell whether a state is that of a session's rows, and zeros after a reset."""
    return (
        state.type.dtype is dtype
        and len(state.type.dims) == 1
        and state.kind is StateKind.PLAIN
        and state.initial is None
        and state.reset is ResetRule.INITIAL
    )


def _rows_of(program: Program) -> Dim:
    """Return the number of rows that a session writes into the two states."""
    cursor = program.cursors[0] if program.cursors else None
    counted = cursor is not None and cursor.kind is CursorKind.SESSION
    if counted and cursor is not None and cursor.rows is not None:
        return cursor.rows
    if _BATCH in fixed_symbols(program):
        return affine(0, {_BATCH: 1})
    grown = (s for s in program.states if s.kind is StateKind.APPEND and s.axis != 0)
    return 1 if counted else next((s.type.dims[0] for s in grown), 1)
