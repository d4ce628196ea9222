"""Amounts on the command line: bytes with units, sizes by name."""

import click


def nbytes_of(text: str, option: str) -> int:
    """Return the bytes of 512M, 1.5G, 100k or 1000000; units are decimal.

    Args:
        text: as the user gave it.
        option: that it was given to, for the message.

    Raises:
        click.BadParameter: it is no such number.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "")
    factors = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
    try:
        return round(float(number) * factors[unit.lower()])
    except (ValueError, KeyError, OverflowError):
        raise click.BadParameter(
            f"expected bytes, as 512M or 2G, found {text!r}", param_hint=option
        ) from None


def sizes_of(text: str | None) -> dict[str, int]:
    """Return the sizes of `NAME=N,NAME=N`, which is given to `--at`.

    Raises:
        click.BadParameter: a part is not of this form.
    """
    found: dict[str, int] = {}
    for part in (text or "").split(","):
        name, _, number = part.strip().partition("=")
        if part and not number.isdecimal():
            raise click.BadParameter(
                f"expected NAME=N, as capacity=4096,tokens=512, found {part!r}",
                param_hint="--at",
            )
        if part:
            found[name] = int(number)
    return found
