"""Which cases of a test run every day: a sample, the same each day.

The others run with `pytest -m exhaustive`, which has all that is left out here. Marks
are put on functions, and name their parameters; ids and cases stay as they are. A mark
of a whole module is for those of its tests that have these parameters. Where tests run
in the ways of `state_backends`, a sample is one of the plain way: the others have a
choice of their own, but where a mark names the parameter `backend`.
"""

from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Hashable,
    Iterable,
    Sequence,
)
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

RARELY = pytest.mark.exhaustive
Case = TypeVar("Case")
Chosen = Callable[[pytest.Function], bool]


def every(
    number: int, *names: str, always: Container[object] = ()
) -> pytest.MarkDecorator:
    """Let one of so many cases run daily.

    It is one where the places of its parameters in their lists sum up to a multiple of
    the number: of two parameters that have so many values each value has its turn.

    Args:
        number: One of how many.
        names: Of the parameters.
        always: Values of any of them that run daily in any case.
    """

    def chosen(item: pytest.Function) -> bool:
        turn = sum(_place(item, name) for name in names) % number == 0
        return turn or any(item.callspec.params[name] in always for name in names)

    return _daily(chosen, names)


def only(**wanted: Container[object]) -> pytest.MarkDecorator:
    """Let those cases run daily whose parameters have one of these values each."""

    def chosen(item: pytest.Function) -> bool:
        return all(item.callspec.params[name] in some for name, some in wanted.items())

    return _daily(chosen, wanted)


def some_of_each(
    number: int, cases: Iterable[Case], kind: Callable[[Case], Hashable]
) -> list[ParameterSet]:
    """Return cases as parameters; each kind's first runs daily, and one of so many."""
    seen: Counter[Hashable] = Counter()
    made = []
    for case in cases:
        rarely = seen[kind(case)] % number
        seen[kind(case)] += 1
        made.append(pytest.param(case, marks=RARELY if rarely else ()))
    return made


def leave_to_the_exhaustive_run(item: pytest.Item) -> None:
    """Mark a test that one of the marks above has not chosen."""
    callspec = getattr(item, "callspec", None)
    for mark in item.iter_markers("daily"):
        names, chosen = mark.args
        if callspec and callspec.params.keys() >= set(names) and not chosen(item):
            item.add_marker(RARELY)


def _daily(chosen: Chosen, names: Collection[str]) -> pytest.MarkDecorator:
    def of_the_plain_way(item: pytest.Function) -> bool:
        other = item.callspec.params.get("backend") and "backend" not in names
        return bool(other) or chosen(item)

    return pytest.mark.daily.with_args(names, of_the_plain_way)


def _place(item: pytest.Function, name: str) -> int:
    """Return where the value of a parameter first stands among those that it has."""
    value = item.callspec.params[name]
    for mark in item.iter_markers("parametrize"):
        names, cases = mark.args
        if name in ((names,) if isinstance(names, str) else names):
            values = [_value(case, names, name) for case in cases]
            return next(i for i, one in enumerate(values) if one is value)
    return item.callspec.indices[name]  # of a fixture


def _value(case: object, names: str | Sequence[str], name: str) -> object:
    """Return what a case of `parametrize` has for one of its names."""
    row = case.values if isinstance(case, ParameterSet) else case
    if isinstance(names, str):
        return row[0] if row is not case else case
    return row[names.index(name)]
