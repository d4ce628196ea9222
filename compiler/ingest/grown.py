"""Make states of the arguments in `Method.carry`: types, and axes of growth.

In: for each path of an argument in `Method.carry`, the types of the argument and of the
result that replaces it, in every method. Out: one state for each path. The types must
be equal in all methods except for the current length of the state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvc.compiler.ir import State
from kvc.schema.errors import CaptureError, StateConflict
from kvc.schema.types import Dim, Symbol, TensorType, only_symbol


@dataclass(frozen=True, slots=True)
class Use:
    """The types of a state made from `Method.carry`, in one method.

    Attributes:
        method: the name of the method.
        old: the type of the argument that is the state; None if the method only returns
            the state.
        new: the type of the result that becomes the state.
    """

    method: str
    old: TensorType | None
    new: TensorType


def carried_state(
    name: str, uses: Sequence[Use], symbols: Mapping[str, Symbol]
) -> State:
    """Return the state that an argument in `Method.carry` becomes.

    Args:
        name: the name of the state.
        uses: types of the state in all methods that use it; at least one method takes
            the state as an argument.
        symbols: the program's symbols by name.

    Raises:
        StateConflict: the types differ between methods, or between the argument and the
            result of a method.
        CaptureError: the declared length cannot be 0, but a growing state of a new
            session is empty.
    """
    first = next(use for use in uses if use.old is not None)
    assert first.old is not None
    for use in uses:
        for kind in (use.old, use.new):
            if kind is not None and not (
                kind.dtype is first.old.dtype and len(kind.dims) == len(first.old.dims)
            ):
                raise _conflict(name, first, use, kind)
    axis = _axis(name, uses, first)
    kind = first.old
    if axis is not None:
        kind = _at(kind, axis, _greatest(name, first, axis, symbols))
    for use in uses:
        _check_use(name, use, first, axis, symbols)
    return State(name, kind, None, axis)


def _axis(name: str, uses: Sequence[Use], first: Use) -> int | None:
    """Return the axis along which calls change a state's size, None if none does."""
    changed: dict[int, Use] = {}
    for use in uses:
        old = use.old or first.old
        assert old is not None
        for axis, (size, new) in enumerate(zip(old.dims, use.new.dims, strict=True)):
            if size != new:
                changed[axis] = use
    if len(changed) > 1:
        use = changed[max(changed)]
        if use.old is None:
            raise _conflict(name, first, use, use.new)
        axes = " and ".join(map(str, sorted(changed)))
        raise StateConflict(
            state=name,
            reason=f"method {use.method} takes {use.old} and returns {use.new} for "
            f"it; a state may change its size along one axis, not along {axes}",
        )
    return next(iter(changed), None)


def _greatest(name: str, use: Use, axis: int, symbols: Mapping[str, Symbol]) -> int:
    """Return the greatest length of a growing state, as one method declares it.

    Raises:
        StateConflict: the method declares a fixed length.
        CaptureError: the declared length cannot be 0, but the state is empty before the
            first call.
    """
    assert use.old is not None
    symbol = only_symbol(use.old.dims[axis])
    if symbol is None:
        reason = (
            f"method {use.method} takes {use.old}, of fixed size along axis {axis}, "
            "along which it changes from call to call; give that axis a Dim in dynamic"
        )
        raise StateConflict(state=name, reason=reason)
    if symbols[symbol].lower > 0:
        reason = (
            f"{name!r} is carried and grows along axis {axis}, so it has no length at "
            f"first; give its Dim {symbol} the lower bound 0"
        )
        raise CaptureError(method=use.method, place="", reason=reason)
    return symbols[symbol].upper


def _check_use(
    name: str, use: Use, first: Use, axis: int | None, symbols: Mapping[str, Symbol]
) -> None:
    """Check that the types in one method equal those in the first, except in length."""
    assert first.old is not None
    for kind in (use.old, use.new):
        if kind is None:
            continue
        wanted = first.old if axis is None else _at(first.old, axis, kind.dims[axis])
        if kind != wanted:
            raise _conflict(name, first, use, kind)
    if axis is not None and use.old is not None:
        greatest = _greatest(name, use, axis, symbols)
        expected = _greatest(name, first, axis, symbols)
        if greatest != expected:
            reason = (
                f"method {first.method} takes {first.old} of up to {expected} along "
                f"axis {axis}, method {use.method} takes {use.old} of up to {greatest}"
            )
            raise StateConflict(state=name, reason=reason)


def _at(kind: TensorType, axis: int, size: Dim) -> TensorType:
    dims = list(kind.dims)
    dims[axis] = size
    return replace(kind, dims=tuple(dims))


def _conflict(name: str, first: Use, use: Use, kind: TensorType) -> StateConflict:
    does = "takes" if kind is use.old else "makes"
    reason = (
        f"method {first.method} takes {first.old}, method {use.method} {does} {kind}"
    )
    return StateConflict(state=name, reason=reason)
