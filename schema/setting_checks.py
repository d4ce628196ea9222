"""Checks of single settings; each check returns the value in kvc's own type.

In: the name of a setting, for the message, and any value. Out: the value, converted.
The checks accept numbers of numpy as numbers, but not bools.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from kvc.schema.errors import BadSetting

MOST_INT64 = 2**63 - 1
_MOST_DIGITS = 20  # of a token written as a text; Python refuses very long numbers

EarlyStopping = bool | Literal["never"]


def check_count(name: str, found: object) -> int:
    """Return the value of a setting as a whole number, 0 or more.

    Raises:
        BadSetting: the value is something else.
    """
    number = _whole(found)
    if number < 0:
        raise _bad(name, "a whole number, 0 or more", found)
    return number


def check_beams(name: str, found: object) -> int:
    """Return the value of a setting as a number of beams, 1 or more.

    Raises:
        BadSetting: the value is something else.
    """
    number = _whole(found)
    if number < 1:
        raise _bad(name, "a whole number, 1 or more", found)
    return number


def check_early_stopping(name: str, found: object) -> EarlyStopping:
    """Return the value of a setting as True, False, or "never".

    Raises:
        BadSetting: the value is something else.
    """
    if isinstance(found, bool):
        return found
    if found == "never":
        return "never"
    raise _bad(name, "True, False or 'never'", found)


def check_temperature(name: str, found: object) -> float:
    """Return the value of a setting as a finite number, 0 or more.

    Raises:
        BadSetting: the value is something else.
    """
    number = _number(found)
    if not 0 <= number < math.inf:
        raise _bad(name, "a number, 0 or more", found)
    return number


def check_share(name: str, found: object) -> float:
    """Return the value of a setting as a number from 0 to 1.

    Raises:
        BadSetting: the value is something else.
    """
    number = _number(found)
    if not 0 <= number <= 1:
        raise _bad(name, "a number from 0 to 1", found)
    return number


def check_penalty(name: str, found: object) -> float:
    """Return the value of a setting as a finite number above 0.

    Raises:
        BadSetting: the value is something else.
    """
    number = _number(found)
    if not 0 < number < math.inf:
        raise _bad(name, "a number above 0", found)
    return number


def check_bias(name: str, found: object) -> float:
    """Return the value of a setting as a finite number.

    Raises:
        BadSetting: the value is something else.
    """
    number = _number(found)
    if not math.isfinite(number):
        raise _bad(name, "a finite number", found)
    return number


def check_truth(name: str, found: object) -> bool:
    """Return the value of a setting as True or False.

    Raises:
        BadSetting: the value is something else.
    """
    if not isinstance(found, bool):
        raise _bad(name, "True or False", found)
    return found


def check_tokens(name: str, found: object) -> tuple[int, ...]:
    """Return the value of a setting as token ids; a single id is accepted too.

    Raises:
        BadSetting: the value is something else.
    """
    return tuple(_check_token(name, token) for token in _listed(found))


def check_strings(name: str, found: object) -> tuple[str, ...]:
    """Return the value of a setting as strings; a single string is accepted too.

    Raises:
        BadSetting: the value is something else, or a string is empty.
    """
    return tuple(_check_string(name, text) for text in _listed(found))


def check_token_lists(name: str, found: object) -> tuple[tuple[int, ...], ...]:
    """Return the value of a setting as lists of token ids, none of them empty.

    Raises:
        BadSetting: the value is something else.
    """
    lists = found if isinstance(found, list | tuple) else [found]
    for one in lists:
        if not isinstance(one, list | tuple) or not one:
            raise _bad(name, "a list of lists of tokens, none empty", found)
    return tuple(check_tokens(name, one) for one in lists)


def check_sequence_bias(
    name: str, found: object
) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return the value of a setting as pairs of token ids and a finite number.

    The value is a list of such pairs, as in a JSON file, or a mapping.

    Raises:
        BadSetting: the value is something else.
    """
    items = list(found.items()) if isinstance(found, Mapping) else found
    expected = "pairs of a list of tokens and a number, such as [[[15, 8], -2.0]]"
    pairs = []
    for item in items if isinstance(items, list | tuple) else [items]:
        match item:
            case (list() | tuple() as tokens, bias) if tokens:
                pairs.append((check_tokens(name, tokens), check_bias(name, bias)))
            case _:
                raise _bad(name, expected, found)
    return tuple(pairs)


def check_logit_bias(
    name: str, found: object
) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Return a mapping of single tokens to numbers, as `check_sequence_bias` does.

    Tokens may be written as texts, as in JSON.

    Raises:
        BadSetting: the value is something else.
    """
    if not isinstance(found, Mapping):
        raise _bad(name, "a mapping of tokens to numbers, such as {15: -2.0}", found)
    tokens = [
        int(token)
        if isinstance(token, str) and token.isdecimal() and len(token) < _MOST_DIGITS
        else token
        for token in found
    ]
    pairs = zip(tokens, found.values(), strict=True)
    return check_sequence_bias(name, [[[token], bias] for token, bias in pairs])


def _check_token(name: str, found: object) -> int:
    number = _whole(found)
    if not 0 <= number <= MOST_INT64:
        raise _bad(name, "tokens, whole numbers of 0 or more", found)
    return number


def _check_string(name: str, found: object) -> str:
    if not isinstance(found, str) or not found:
        raise _bad(name, "texts that are not empty", found)
    return found


def _listed(found: object) -> Sequence[object]:
    """Return the items of a sequence or set; for another value, [value]."""
    if isinstance(found, str | bytes | bytearray):
        return [found]
    return list(found) if isinstance(found, Sequence | set | frozenset) else [found]


def _whole(found: object) -> int:
    if isinstance(found, int | np.integer) and not isinstance(found, bool):
        return int(found)
    return -1


def _number(found: object) -> float:
    """Return a number as a float, and NaN, which fails every check, for others."""
    if isinstance(found, bool):
        return math.nan
    if isinstance(found, int | float | np.integer | np.floating):
        try:
            return float(found)
        except OverflowError:
            return math.inf
    return math.nan


def _bad(name: str, expected: str, found: object) -> BadSetting:
    return BadSetting(name=name, expected=expected, found=repr(found))
