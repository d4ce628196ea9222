"""By how much a method advances an integer state, and in which rows.

In: a method of a flat program, the name of a state that counts. Out: a `Step`: a size
that is the same in all rows, or the input that says it of each row. Which of the states
that count is the position is found in `positions.py`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvc.compiler.analysis.flat import FlatMethod
from kvc.compiler.ir import Method, Program, State, Value, bound_to
from kvc.schema.dtypes import DType
from kvc.schema.row_lengths import may_be_row_lengths, says_the_same
from kvc.schema.types import Affine, Dim, Symbol, bounds

_INTEGERS = (DType.INT32, DType.INT64)


@dataclass(frozen=True, slots=True)
class Step:
    """What a method adds to a state.

    Attributes:
        size: the same in all rows, None where an input says it of each row.
        row_lengths: index of that input, int64 or bool [batch], None without one.
    """

    size: Dim | None
    row_lengths: int | None = None


def find_steps(
    program: Program, state: State, symbols: Mapping[str, Symbol]
) -> dict[str, Step]:
    """Return method -> what it adds to a state; nothing unless all add a size."""
    if state.type.dtype not in _INTEGERS or len(state.type.dims) > 1:
        return {}
    steps: dict[str, Step] = {}
    for method in program.methods:
        for value, name in method.state_out:
            if name == state.name:
                ways = [_added(method, v, state.name) for v in leaves(method, value)]
                step = ways[0] if len(set(ways)) == 1 else None
                if step is None or not _is_non_negative(step, symbols):
                    return {}
                steps[method.name] = step
    return steps


def row_lengths_input(method: Method, value: Value | None) -> int | None:
    """Return the input whose counts a value is, None where it is anything else.

    That is an int64 input itself, or a bool one as int64, one number for each row.
    """
    if value is None or value.type.dtype is not DType.INT64:
        return None
    makers, changed = method.makers(), {name for _, name in method.input_out}
    while (node := makers.get(value.id)) is not None:
        source = node.inputs[0] if node.inputs else None
        if source is None or not says_the_same(node.op, source.type, value.type):
            return None
        value = source
    ids = [given.id for given in method.inputs]
    if value.id not in ids or not may_be_row_lengths(value.type):
        return None
    found = ids.index(value.id)
    return None if method.input_names[found] in changed else found


def counts_rows_as(
    method: Method, value: Value | None, row_lengths: int | None
) -> bool:
    """Tell whether `row_lengths` are an input's, or left out where none counts."""
    if value is None or row_lengths is None:
        return value is None and row_lengths is None
    return row_lengths_input(method, value) == row_lengths


def token_counts(method: Method) -> set[Dim]:
    """Return the lengths of a method's inputs of tokens, int64 [batch, seq]."""
    named = zip(method.input_names, method.inputs, strict=True)
    given = [v.type for name, v in named if name != method.position]
    tokens = [t for t in given if t.dtype is DType.INT64 and len(t.dims) == 2]
    return {kind.dims[1] for kind in tokens}


def leaves(method: Method, value: Value) -> list[Value]:
    """Return what a value may be: more than itself where branches make it."""
    joins = dict(method.joins) if isinstance(method, FlatMethod) else {}
    if value.id not in joins:
        return [value]
    return [leaf for way in joins[value.id] for leaf in leaves(method, way)]


def _is_non_negative(step: Step, symbols: Mapping[str, Symbol]) -> bool:
    """Tell whether a step cannot lead back; counts are checked at each call."""
    return step.size is None or bounds(step.size, symbols)[0] >= 0


def _added(method: Method, new: Value, state: str) -> Step | None:
    """Return what a method adds to a state, None when it does anything else."""
    olds = _old_values(method, state)
    makers = method.makers()
    maker = makers.get(new.id)
    if maker is not None and maker.op == "aten::copy":
        maker = makers.get(maker.inputs[1].id)
    if maker is None or maker.arguments[-1] != 1:  # alpha
        return None
    match maker.op, maker.arguments:
        case "aten::add.Scalar", (Value() as old, step, _) if old.id in olds:
            return Step(step) if isinstance(step, int | Affine) else None
        case "aten::add.Tensor", (Value() as old, Value() as other, _):
            return _added_row_lengths(method, new, old, other, olds)
    return None


def _added_row_lengths(
    method: Method, new: Value, one: Value, other: Value, olds: Iterable[int]
) -> Step | None:
    """Return the step of a sum of a state and counts, in either order."""
    if one.id not in olds:
        one, other = other, one
    row_lengths = row_lengths_input(method, other)
    fits = one.id in olds and new.type == one.type and other.type == one.type
    return Step(None, row_lengths) if fits and row_lengths is not None else None


def _old_values(method: Method, state: str) -> set[int]:
    """Return the ids of a state's old value and of copies of it."""
    olds = {i for i, name in bound_to(method.state_in).items() if name == state}
    for node in method.nodes:
        if node.op == "aten::clone" and node.inputs[0].id in olds:
            olds.update(value.id for value in node.outputs)
    return olds
