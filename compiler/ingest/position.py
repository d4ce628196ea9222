"""Check `Method.position`, the input that a session fills with its position."""

from collections.abc import Sequence, Set
from itertools import combinations

from kvc.compiler.ir import Method
from kvc.schema.dtypes import DType
from kvc.schema.errors import CaptureError, CompileError, listing
from kvc.schema.types import symbols_in


def check_positions(methods: Sequence[Method], state_symbols: Set[str]) -> None:
    """Check every method's position.

    Args:
        methods: as imported.
        state_symbols: sizes that a session fixes.

    Raises:
        CompileError: methods call it differently.
        CaptureError: it is no input that a session can fill.
    """
    users = [method for method in methods if method.position]
    for one, other in combinations(users, 2):
        if one.position != other.position and _write_alike(one, other):
            message = (
                f"method {one.name} calls its position {one.position!r}, "
                f"method {other.name} {other.position!r}, and both write the same "
                "states, which have one position, so give both inputs one name"
            )
            raise CompileError(message=message)
    for method in users:
        fault = _fault(method, state_symbols)
        if fault:
            reason = f"position names the input {method.position!r}, but {fault}"
            raise CaptureError(method=method.name, place="", reason=reason)


def _write_alike(method: Method, other: Method) -> bool:
    """Tell whether two methods write a state in common, or none at all."""
    one, two = ({name for _, name in m.state_out} for m in (method, other))
    return not one or not two or not one.isdisjoint(two)


def _fault(method: Method, state_symbols: Set[str]) -> str:
    """Return why a session cannot fill a method's position, "" if it can."""
    types = {n: v.type for n, v in zip(method.input_names, method.inputs, strict=True)}
    name = method.position
    if name not in types:
        carried = [state for _, state in (*method.state_in, *method.state_out)]
        if name in carried:
            return "it is carried, so it is not an input"
        return f"its tensors are {listing(list(types))}"
    kind = types.pop(name)
    if kind.dtype is not DType.INT64 or len(kind.dims) > 1:
        return f"it is {kind}; a position is int64, with no dims, [1], [batch] or [seq]"
    if name in [changed for _, changed in method.input_out]:
        return "the method writes into it, but the session discards what is written"
    known = {*state_symbols, *symbols_in(types.values())}
    loose = [symbol for symbol in symbols_in([kind]) if symbol not in known]
    if loose:
        return f"no other input has the size {loose[0]}; use the Dim of the tokens"
    return ""
