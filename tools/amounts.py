"""Amounts on the command line: bytes with units, sizes by name."""

from typing import Final

import click

_DIGITS: Final = 18  # of a whole number: what 64 bits hold


def nbytes_of(text: str, option: str, least: int = 0) -> int:
    """Return the bytes of 512M, 1.5G, 100k or 1000000; units are decimal.

    Args:
        text: as the user gave it.
        option: that it was given to, for the message.
        least: that is taken.

    Raises:
        click.BadParameter: it is no such number.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    factors = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    try:
        nbytes = round(float(number) * factors[unit.lower()])
    except (ValueError, KeyError, OverflowError):
        nbytes = -1
    if nbytes < least:
        raise click.BadParameter(
            f"expected bytes, as 512M or 2G, found {text!r}", param_hint=option
        )
    return nbytes


def whole_number(text: str) -> int | None:
    """Return a number of digits alone; None if it is none, or larger than any size."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def sizes_of(text: str | None) -> dict[str, int]:
    """Return the sizes of `NAME=N,NAME=N`, which is given to `--at`.

    Raises:
        click.BadParameter: a part is not of this form, or a name is there twice.
    """
    found: dict[str, int] = {}
    for part in (text or "").split(","):
        name, _, digits = part.strip().partition("=")
        number = whole_number(digits)
        if part and (number is None or name in found):
            expected = "NAME=N, as capacity=4096,tokens=512, each name once"
            raise click.BadParameter(
                f"expected {expected}, found {part!r}", param_hint="--at"
            )
        if number is not None:
            found[name] = number
    return found
