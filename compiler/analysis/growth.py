"""How methods lengthen growing states: by what, and what becomes of the old rows.

In: a method of a flat program, a growing state. Out: sizes, and whether the rows from
before the call are still there after it.
"""

from collections.abc import Sequence

from kvc.compiler.analysis.flat import FlatMethod
from kvc.compiler.ir import State
from kvc.schema.types import Dim, add_dims


def growth(method: FlatMethod, state: State) -> Dim | None:
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


def keeps_old_rows(method: FlatMethod, state: State) -> bool:
    """Tell whether a method leaves the rows of a growing state, or begins it anew."""
    written = {name for _, name in method.state_out}
    if state.name not in written or state.name in _lengthened(method):
        return True
    return growth(method, state) is None


def one_length(method: FlatMethod, growing: Sequence[State]) -> bool:
    """Tell whether a method gives all of several states that grow the same length."""
    axes = {state.name: state.grows for state in growing}
    lengths = {
        value.type.dims[axis]
        for value, name in method.state_out
        if (axis := axes.get(name)) is not None
    }
    return len(lengths) == 1


def _lengthened(method: FlatMethod) -> set[str]:
    """Return the states whose new content begins with the old one."""
    makers = method.makers()
    return {
        name
        for value, name in method.state_out
        if all(
            leaf.id in makers and makers[leaf.id].op == "kvc::append"
            for leaf in method.leaves(value)
        )
    }
