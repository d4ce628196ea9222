"""Change a decoded program, or the content of a JSON file, in a few meaningful places.

In: a valid program or JSON content, a seeded random generator. Out: a variant that may
be invalid. A field is chosen by its kind first (the owner's class and the field's
name), so that rare fields are changed as often as frequent ones. It gets a number near
its own or far away, or the value of another field of that kind. JSON content may also
get values of other types.
"""

import dataclasses
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Generic, TypeVar

from kvc.schema.model import Blob, Program

Path = tuple[object, ...]  # names of fields, indices, keys
NUMBERS = (0, 1, 2, 3, 7, 63, 64, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, math.inf, -math.inf, math.nan)
ODD = (None, True, -1, 1 << 40, 1e308, "", "x", "\ud800", (), {})  # in JSON
PIECES = (
    "", " ", "a", "\x00", "\u00e9", "\uffff", "[", "\\", "(.*)*", "1" * 400,
)  # fmt: skip  # of texts
_FIELDS = 20  # an object of JSON that has more is a table
_TRIES = 20  # for something that is not what it was
BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)


T = TypeVar("T")


class Mutator(Generic[T]):
    """Makes variants of a program, or of JSON content (with tuples for lists)."""

    def __init__(self, whole: T, odd: Sequence[object] = ()) -> None:
        """Take the valid content `whole`; `odd` values may be put in any place."""
        self._whole, self._odd = whole, odd
        self._places: dict[str, list[Path]] = defaultdict(list)
        self._known: dict[str, list[object]] = defaultdict(list)
        for path, kind, value in _walk(whole, (), type(whole).__name__):
            self._places[kind].append(path)
            self._known[kind].append(value)
        self._kinds = sorted(self._places)

    def mutate(self, dice: random.Random) -> T:
        """Return a variant that differs in one to three places."""
        changed: object = self._whole
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            changed = self._with_one(changed, dice)
        assert isinstance(changed, type(self._whole))
        return changed

    def _with_one(self, program: object, dice: random.Random) -> object:
        for _ in range(_TRIES):
            kind = dice.choice(self._kinds)
            path = dice.choice(self._places[kind])
            try:
                value = _at(program, path)
            except (AttributeError, IndexError, KeyError, TypeError):
                continue  # an earlier change has removed it
            other = self._other(value, kind, dice)
            if other != value:
                return _put(program, path, other)
        return program

    def _other(self, value: object, kind: str, dice: random.Random) -> object:
        if self._odd and dice.random() < 0.2:
            return dice.choice(self._odd)
        if dice.random() < 0.4:
            return dice.choice(self._known[kind])
        if isinstance(value, str) and self._odd:
            return other_text(value, dice)
        return self._near(value, kind, dice)

    def _near(self, value: object, kind: str, dice: random.Random) -> object:
        match value:
            case bool():
                return not value
            case Enum():
                return dice.choice(list(type(value)))
            case int():
                near = value + dice.choice((-64, -2, -1, 1, 2, 64))
                return dice.choice((near, near, value * 2, dice.choice(NUMBERS)))
            case float():
                return dice.choice(FLOATS)
            case bytes():
                return mutate_bytes(value, dice)
            case tuple():
                return _other_tuple(value, dice)
            case Mapping() if value:
                return _other_mapping(value, dice)
        return dice.choice(self._known[kind])


def mutate_bytes(raw: bytes, dice: random.Random) -> bytes:
    """Return bytes of the same length, of which one to eight neighbors are changed."""
    if not raw:
        return raw
    changed = bytearray(raw)
    nbytes = dice.choice((1, 1, 4, 8))
    start = dice.randrange(len(raw)) // nbytes * nbytes
    for at in range(start, min(start + nbytes, len(raw))):
        changed[at] = dice.choice((*BYTES, dice.randrange(256)))
    return bytes(changed)


def with_other_data(
    program: Program, blobs: bytes, start: int, dice: random.Random
) -> tuple[bytes, Blob | None]:
    """Return the bytes before the program with one blob changed, and that blob.

    `start` is where the bytes `blobs` begin in the file. The blob is None if the
    program has none in this file.
    """
    inside = [blob for blob in program.blobs if blob.file == 0 and blob.nbytes]
    if not inside:
        return blobs, None
    blob = dice.choice(inside)
    at = blob.offset - start
    content = blobs[at : at + blob.nbytes]
    for _ in range(dice.choice((1, 4, 64))):
        content = mutate_bytes(content, dice)
    return blobs[:at] + content + blobs[at + blob.nbytes :], blob


def _other_tuple(value: tuple[object, ...], dice: random.Random) -> tuple[object, ...]:
    """Return a tuple in which an item is lost, doubled, moved or overwritten."""
    if not value:
        return value
    one, other = (dice.randrange(len(value)) for _ in range(2))
    items, how = list(value), dice.randrange(4)
    if how == 0:
        del items[one]
    elif how == 1:
        items.insert(other, items[one])
    elif how == 2:
        items[one], items[other] = items[other], items[one]
    else:
        items[one] = items[other]
    return tuple(items)


def _other_mapping(value, dice) -> Mapping[object, object]:
    """Return a mapping in which an entry is lost, or two keys have swapped values."""
    made = dict(value)
    one, other = (dice.choice(list(made)) for _ in range(2))
    if dice.random() < 0.5:
        del made[one]
    else:
        made[one], made[other] = made[other], made[one]
    return made


def other_text(text: str, dice: random.Random) -> str:
    start, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
    middle = dice.choice(("", text[start:end] * 2, dice.choice(PIECES)))
    return text[:start] + middle + text[end:]


def _walk(value: object, path: Path, kind: str) -> Iterator[tuple[Path, str, object]]:
    if dataclasses.is_dataclass(value):
        owner = type(value).__name__
        names = [one.name for one in dataclasses.fields(value)]
        inside = [(name, f"{owner}.{name}", getattr(value, name)) for name in names]
    elif isinstance(value, tuple):
        inside = [(i, f"{kind}[]", one) for i, one in enumerate(value)]
    elif isinstance(value, Mapping):
        plain = len(value) <= _FIELDS
        kinds = [f"{kind}.{key}" if plain else f"{kind}[]" for key in value]
        inside = list(zip(value, kinds, value.values(), strict=True))
    else:
        return
    for step, kind_, one in inside:
        yield (*path, step), kind_, one
        yield from _walk(one, (*path, step), kind_)


def _at(value: object, path: Path) -> object:
    for step in path:
        if dataclasses.is_dataclass(value):
            value = getattr(value, str(step))
        elif isinstance(value, str | bytes):
            raise TypeError("no places within")
        else:
            value = value[step]  # type: ignore[index]
    return value


def _put(value: object, path: Path, content: object) -> object:
    if not path:
        return content
    step, *rest = path
    if dataclasses.is_dataclass(value):
        name = str(step)
        made = _put(getattr(value, name), tuple(rest), content)
        return dataclasses.replace(value, **{name: made})  # type: ignore[type-var]
    if isinstance(value, Mapping):
        return {**value, step: _put(value[step], tuple(rest), content)}
    assert isinstance(value, tuple)
    assert isinstance(step, int)
    return (*value[:step], _put(value[step], tuple(rest), content), *value[step + 1 :])
