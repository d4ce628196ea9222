"""How methods lengthen states that grow: by what, and what becomes of the old rows.

In: a method of a flat program, a state that grows. Out: sizes, and whether what the
state held before the call is still there after it.
"""

from collections.abc import Mapping, Sequence

from kvc.compiler.analysis.advances import leaves
from kvc.compiler.ir import Method, Node, State, Value
from kvc.schema.types import Dim, add_dims


def growth(method: Method, state: State) -> Dim | None:
    """Return by how much a method lengthens a state; None where it begins anew."""
    assert state.grows is not None
    olds = {name: value.type.dims for value, name in method.state_in}
    news = {name: value.type.dims for value, name in method.state_out}
    if state.name not in news:
        return 0
    new = news[state.name][state.grows]
    old = olds[state.name][state.grows] if state.name in olds else 0
    if old == 0 and new != 0 and state.name not in _lengthened(method):
        return None
    return add_dims(new, old, -1)


def keeps_old_rows(method: Method, state: State) -> bool:
    """Tell whether a method leaves the rows of a growing state, or begins it anew."""
    written = {name for _, name in method.state_out}
    if state.name not in written or state.name in _lengthened(method):
        return True
    return growth(method, state) is None


def one_length(method: Method, growing: Sequence[State]) -> bool:
    """Tell whether a method gives all of several states that grow the same length."""
    axes = {state.name: state.grows for state in growing}
    lengths = {
        value.type.dims[axis]
        for value, name in method.state_out
        if (axis := axes.get(name)) is not None
    }
    return len(lengths) == 1


def _lengthened(method: Method) -> set[str]:
    """Return the states whose new content begins with the old one."""
    makers = method.makers()
    return {
        name
        for value, name in method.state_out
        if all(
            _is_made_by(leaf, "kvc::append", makers) for leaf in leaves(method, value)
        )
    }


def _is_made_by(value: Value, op: str, makers: Mapping[int, Node]) -> bool:
    return value.id in makers and makers[value.id].op == op
