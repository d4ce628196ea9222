"""Records as arguments and results: dataclasses, named tuples, dicts with attributes.

In: an argument or result of a model; or a description in a file of a record class: its
kind, name and fields. Out: the names and values of a record's fields, or a class of the
described kind. A file never names a class to import: this module makes a class with the
same fields, from names that have been checked.
"""

import keyword
import unicodedata
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from functools import lru_cache
from typing import Final, cast

from kvc.schema.frozen import frozen

# The kinds of records at run time: an object with attributes, a named tuple, or a dict
# whose items are attributes too, as transformers' ModelOutput.
DATACLASS, NAMEDTUPLE, MAPPING = KINDS = ("dataclass", "namedtuple", "mapping")
MAX_FIELDS: Final = 256
MAX_NAME: Final = 128  # characters


@frozen
class RecordType:
    """Description of a record class: its kind (one of KINDS), name and field names."""

    kind: str
    name: str
    fields: tuple[str, ...]

    def made(self, values: Sequence[object]) -> object:
        """Return a record of this type with the given values.

        Its class is made by this module, not imported.
        """
        made = _made_class(self)
        if self.kind == MAPPING:
            return made(zip(self.fields, values, strict=True))
        return made(*values)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} with {', '.join(self.fields) or 'no fields'}"


def record_type(thing: object) -> RecordType | None:
    """Return the type of a record; None if `thing` is not a record."""
    kind = type(thing)
    if isinstance(thing, type):
        return None
    if isinstance(thing, dict):
        named = isinstance(thing, MadeMapping) or is_dataclass(thing)
        return RecordType(MAPPING, kind.__name__, tuple(thing)) if named else None
    if isinstance(thing, tuple):
        names = _tuple_fields(kind)
        return None if names is None else RecordType(NAMEDTUPLE, kind.__name__, names)
    if is_dataclass(thing):
        names = tuple(one.name for one in fields(thing))
        return RecordType(DATACLASS, kind.__name__, names)
    return None


def _tuple_fields(kind: type) -> tuple[str, ...] | None:
    """Return the field names of a named tuple, or of a C struct sequence of torch."""
    names = getattr(kind, "_fields", None)
    if names is None and hasattr(kind, "n_sequence_fields"):
        names = getattr(kind, "__match_args__", ())
    return None if names is None else tuple(names)


def values_of(thing: object, kind: RecordType) -> tuple[object, ...]:
    """Return the field values of a record that has the type `kind`."""
    if kind.kind == DATACLASS:
        return tuple(getattr(thing, name) for name in kind.fields)
    if kind.kind == MAPPING:
        return tuple(cast(Mapping[str, object], thing).values())
    return tuple(cast(tuple[object, ...], thing))


def named_values(thing: object) -> Mapping[str, object] | None:
    """Return the values in a mapping or record, by name; None for any other object."""
    if isinstance(thing, Mapping):
        return cast(Mapping[str, object], thing)
    kind = record_type(thing)
    if kind is None:
        return None
    return dict(zip(kind.fields, values_of(thing, kind), strict=True))


def check_record(kind: object, name: object, names: Sequence[object]) -> None:
    """Check the names of a record type before a class is made from it.

    Raises:
        ValueError: a name is not a plain identifier, or is too long; or a field is
            private or repeated.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is no kind of record")
    if len(names) > MAX_FIELDS:
        raise ValueError(f"a record has {len(names)} fields, {MAX_FIELDS} at the most")
    for one in (name, *names):
        if not isinstance(one, str) or not _is_plain(one):
            raise ValueError(f"a record has the name {one!r}, which is no identifier")
    private = [one for one in names if isinstance(one, str) and one[0] == "_"]
    if private:
        raise ValueError(f"a record has the field {private[0]!r}, which is private")
    if len(set(names)) != len(names):
        raise ValueError("a record has a field twice")


def _is_plain(name: str) -> bool:
    """Tell whether a name is a normalized identifier and not a keyword."""
    if len(name) > MAX_NAME or not name.isidentifier() or keyword.iskeyword(name):
        return False
    return unicodedata.normalize("NFKC", name) == name


@lru_cache(maxsize=256)
def _made_class(kind: RecordType) -> type:
    """Return a class of the given record type, whose names must have been checked."""
    if kind.kind == NAMEDTUPLE:
        named: type = namedtuple(kind.name, kind.fields)  # type: ignore[misc]
        return type(kind.name, (named,), {"__slots__": (), "__reduce__": _reduced})
    if kind.kind == MAPPING:
        return type(kind.name, (MadeMapping,), {})
    made = [(name, object, field()) for name in kind.fields]
    return make_dataclass(kind.name, made, bases=(MadeObject,), eq=False)


def _reduced(thing: object) -> tuple[object, ...]:
    """Return what pickle stores: the record's type and values.

    The class of the record cannot be imported.
    """
    kind = record_type(thing)
    assert kind is not None
    return RecordType.made, (kind, values_of(thing, kind))


class MadeObject:
    """Base class of the classes made for dataclasses; compared by field values."""

    __reduce__ = _reduced
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        kind = record_type(self)
        if not isinstance(other, MadeObject) or kind != record_type(other):
            return NotImplemented
        assert kind is not None
        return all(map(_equal, values_of(self, kind), values_of(other, kind)))


class MadeMapping(dict[str, object]):
    """Base class of the classes made for dicts with attributes; `[n]` is the item n."""

    __reduce__ = _reduced

    def __getattr__(self, name: str) -> object:
        if name not in self:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return self[name]

    def __missing__(self, key: object) -> object:
        if isinstance(key, int):
            return tuple(self.values())[key]
        raise KeyError(key)

    def __repr__(self) -> str:
        items = ", ".join(f"{name}={value!r}" for name, value in self.items())
        return f"{type(self).__name__}({items})"


def _equal(a: object, b: object) -> bool:
    """Tell whether two values are equal; two arrays are equal if all elements are."""
    if isinstance(a, list | tuple) and type(a) is type(b):
        return len(a) == len(cast(list[object], b)) and all(map(_equal, a, b))
    if isinstance(a, dict) and type(a) is type(b):
        other = cast(dict[object, object], b)
        return a.keys() == other.keys() and all(_equal(a[k], other[k]) for k in a)
    records = isinstance(a, MadeObject) or isinstance(b, MadeObject)
    if a is b or records or not hasattr(a, "shape") or not hasattr(b, "shape"):
        return a is b or bool(a == b)
    return bool(a.shape == b.shape and (a == b).all())  # type: ignore[attr-defined]
