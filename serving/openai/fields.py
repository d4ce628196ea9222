"""`Fields`: the fields of a JSON object that a client sent, checked one by one.

In: a parsed JSON value. Out: values of the types that are asked for. What is wrong is a
`BadSetting` that names the place, as messages[0].content.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final, cast

from kvc.schema.errors import BadSetting, meant

_MOST: Final = 80  # characters of a value in a message
_ENCODER: Final = json.JSONEncoder(default=repr)


def bad(name: str, expected: str, found: object) -> BadSetting:
    """Return the error for a field that is not as expected."""
    shown = found if isinstance(found, int | float) else _shown(found)
    return BadSetting(name=name, expected=expected, found=shown)


def _shown(found: object) -> str:
    """Return the beginning of a value; of a large one no more than that is written."""
    if isinstance(found, str):
        return repr(found[:_MOST])[:_MOST]
    if not isinstance(found, dict | list):
        return repr(found)[:_MOST]
    text = ""
    for piece in _ENCODER.iterencode(found):
        text += piece[:_MOST]
        if len(text) >= _MOST:
            break
    return text[:_MOST]


class Fields:
    """The fields of one object.

    Attributes:
        where: the place of the object, "" for the whole body.
        value: the object.
    """

    def __init__(self, value: object, where: str = "") -> None:
        """Take an object.

        Raises:
            BadSetting: the value is no object.
        """
        self.where = where
        if not isinstance(value, dict):
            raise bad(where or "the body", "a JSON object", value)
        self.value: Mapping[str, object] = value

    def name(self, field: str) -> str:
        """Return the name of a field, with its place."""
        return f"{self.where}.{field}" if self.where else field

    def bad(self, field: str, expected: str) -> BadSetting:
        """Return the error for a field that is not as expected."""
        return bad(self.name(field), expected, self.value.get(field))

    def get(self, field: str) -> object:
        """Return the value of a field, None if it is missing."""
        return self.value.get(field)

    def text(self, field: str) -> str | None:
        """Return a text, None if it is missing."""
        found = self.value.get(field)
        if found is None or isinstance(found, str):
            return found
        raise self.bad(field, "a text")

    def needed_text(self, field: str) -> str:
        """Return a text that must be there."""
        found = self.text(field)
        if found is None:
            raise self.bad(field, "a text")
        return found

    def flag(self, field: str) -> bool | None:
        """Return true or false, None if it is missing."""
        found = self.value.get(field)
        if found is None or isinstance(found, bool):
            return found
        raise self.bad(field, "true or false")

    def whole(self, field: str, least: int, most: int) -> int | None:
        """Return a whole number of a range, None if it is missing."""
        found = self.value.get(field)
        if found is None:
            return None
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if type(found) is int and least <= found <= most:
            return found
        raise self.bad(field, f"a whole number from {least} to {most}")

    def number(self, field: str, least: float, most: float) -> float | None:
        """Return a number of a range, None if it is missing."""
        found = self.value.get(field)
        if found is None:
            return None
        is_number = isinstance(found, int | float) and not isinstance(found, bool)
        if is_number and least <= (number := cast("float", found)) <= most:
            return number  # also not NaN
        raise self.bad(field, f"a number from {least:g} to {most:g}")

    def listed(self, field: str) -> Sequence[object] | None:
        """Return a list, None if it is missing."""
        found = self.value.get(field)
        if found is None or isinstance(found, list):
            return found
        raise self.bad(field, "a list")

    def inner(self, field: str) -> "Fields | None":
        """Return the fields of an object within, None if it is missing."""
        found = self.value.get(field)
        return None if found is None else Fields(found, self.name(field))

    def one_of(self, field: str, known: Collection[str]) -> str | None:
        """Return one of some texts, None if it is missing."""
        found = self.value.get(field)
        if found is None or (isinstance(found, str) and found in known):
            return found
        raise self.bad(field, f"one of {', '.join(known)}")

    def check_known(self, known: Collection[str]) -> None:
        """Check that there is no field of another name.

        Raises:
            BadSetting: there is one whose value is not null.
        """
        for field, value in self.value.items():
            if field not in known and value is not None:
                near = meant(field, known)
                expected = f"no value: this server does not know the field{near}"
                raise self.bad(field[:_MOST], expected)
