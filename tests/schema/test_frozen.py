"""Classes by `frozen` are what `@dataclass(frozen=True, slots=True)` makes."""

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Generic, TypeVar

import pytest

from kvc.schema.frozen import frozen

T = TypeVar("T")


@frozen
class Place:
    """One with all sorts of fields."""

    row: int
    column: int = 3
    names: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Standard:
    """The same by the standard library."""

    row: int
    column: int = 3
    names: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False)


@frozen
class Raised(Place):
    """One with a base that has fields."""

    height: int = 0


@frozen
class Nothing:
    """One without fields."""


@frozen
class Holder(Generic[T]):
    """One with a single field, of any type."""

    value: T


def test_instances_hold_what_they_are_given_and_defaults():
    first, second = Place(1), Place(row=1, names=["a"], column=2, note="x")
    assert (first.row, first.column, first.names, first.note) == (1, 3, [], "")
    assert (second.row, second.column, second.names) == (1, 2, ["a"])
    assert Place(1).names is not first.names
    assert Nothing() == Nothing()


@pytest.mark.parametrize("arguments", [(), (1, 2, [], "", 5)])
def test_wrong_arguments_are_refused_in_the_same_words(arguments):
    with pytest.raises(TypeError) as found:
        Place(*arguments)
    with pytest.raises(TypeError) as expected:
        Standard(*arguments)
    assert str(found.value) == str(expected.value).replace("Standard", "Place")


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'height'"):
        Place(1, height=2)


@pytest.mark.parametrize("name", ["row", "other"])
def test_nothing_can_be_set_or_deleted(name):
    place = Place(1)
    with pytest.raises(FrozenInstanceError):
        setattr(place, name, 2)
    with pytest.raises(FrozenInstanceError):
        delattr(place, name)
    assert place.row == 1


def test_there_is_no_dictionary():
    assert not hasattr(Place(1), "__dict__")
    assert Place.__slots__ == ("row", "column", "names", "note")


def test_equality_and_hash_are_of_class_and_fields():
    assert Place(1, 2) == Place(1, 2, note="not compared")
    assert Place(1, 2) != Place(1, 4)
    assert Place(1) != Standard(1)
    assert Place(1) != (1, 3, [])
    assert Holder(2) == Holder(2)
    assert len({Holder(2), Holder(2), Holder("2"), Nothing(), Nothing()}) == 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(Place(1))


def test_they_are_printed_in_the_same_way():
    assert repr(Place(1, note="x")) == repr(Standard(1, note="x")).replace(
        "Standard", "Place"
    )


def test_tools_for_dataclasses_take_them():
    assert [each.name for each in fields(Place)] == ["row", "column", "names", "note"]
    assert replace(Place(1, 2), row=5) == Place(5, 2)
    match Place(1, 2):
        case Place(row, column):
            assert (row, column) == (1, 2)
        case _:
            pytest.fail("it does not match")


def test_a_class_has_the_fields_of_its_base_first():
    assert [each.name for each in fields(Raised)] == [*Place.__slots__, "height"]
    assert Raised.__slots__ == ("height",)
    assert Raised(1, height=2, note="x") == Raised(1, height=2)
    assert Raised(1, height=2) != Raised(1, height=3)
    assert Raised(1) != Place(1)


def test_copies_are_equal():
    place = Place(1, names=["a"])
    assert copy.copy(place) == place
    assert copy.deepcopy(place).names is not place.names
    assert pickle.loads(pickle.dumps(place)) == place
