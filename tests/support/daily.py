"""Select the cases of a test that run every day: a sample, which is always the same.

All other cases run with `pytest -m exhaustive`. The marks are put on test functions and
name parameters of the tests; they do not change ids or cases. A mark of a whole module
applies to those of its tests that have the named parameters. Tests that
`state_backends` runs in several ways are sampled only in the plain way, unless a mark
names the parameter `backend`; the other ways have a selection of their own.
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
    """Return a mark: one of `number` cases runs daily.

    A case runs if the sum of its parameters' indices, each in the list of the
    parameter's values, is a multiple of `number`. With two parameters of `number`
    values each, every value occurs in the sample.

    Args:
        number: the number of cases of which one runs.
        names: names of the parameters.
        always: parameter values whose cases run daily in any case.
    """

    def chosen(item: pytest.Function) -> bool:
        turn = sum(_place(item, name) for name in names) % number == 0
        return turn or any(item.callspec.params[name] in always for name in names)

    return _daily(chosen, names)


def only(**wanted: Container[object]) -> pytest.MarkDecorator:
    """Return a mark: a case runs daily if each named parameter has a listed value."""

    def chosen(item: pytest.Function) -> bool:
        return all(item.callspec.params[name] in some for name, some in wanted.items())

    return _daily(chosen, wanted)


def some_of_each(
    number: int, cases: Iterable[Case], kind: Callable[[Case], Hashable]
) -> list[ParameterSet]:
    """Return cases as parameters; of each kind, one in `number` runs daily.

    The first case of each kind runs daily.
    """
    seen: Counter[Hashable] = Counter()
    made = []
    for case in cases:
        rarely = seen[kind(case)] % number
        seen[kind(case)] += 1
        made.append(pytest.param(case, marks=RARELY if rarely else ()))
    return made


def leave_to_the_exhaustive_run(item: pytest.Item) -> None:
    """Mark a test as exhaustive if a mark of this module does not select it."""
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
    """Return the index of a parameter's value in the list of the parameter's values."""
    value = item.callspec.params[name]
    for mark in item.iter_markers("parametrize"):
        names, cases = mark.args
        if name in ((names,) if isinstance(names, str) else names):
            values = [_value(case, names, name) for case in cases]
            return next(i for i, one in enumerate(values) if one is value)
    return item.callspec.indices[name]  # of a fixture


def _value(case: object, names: str | Sequence[str], name: str) -> object:
    """Return the value of the parameter `name` in a case of `parametrize`."""
    row = case.values if isinstance(case, ParameterSet) else case
    if isinstance(names, str):
        return row[0] if row is not case else case
    return row[names.index(name)]
