"""Write the classes of characters that libkvc's tokenizer needs.

In: the package tokenizers, whose regular expressions tell which characters are letters,
numbers and digits. Out: `runtime_py/native/libkvc/unicode_classes.inc`, ranges of code
points. Run it again when the package changes its version of Unicode.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from tokenizers import Regex, pre_tokenizers

ROOT: Final = Path(__file__).parents[2]
WRITTEN: Final = ROOT / "runtime_py/native/libkvc/unicode_classes.inc"
_HEAD: Final = """\
// Made by tools/dev/gen_unicode.py: do not edit. Ranges of code points, first and last.
"""
_COLUMNS: Final = 6


def code_points() -> Iterator[int]:
    """Yield all code points that are characters."""
    yield from range(1, 0xD800)
    yield from range(0xE000, 0x110000)


def letters() -> set[int]:
    r"""Return what `\\p{L}` matches in the package's regular expressions."""
    return _matched(pre_tokenizers.Split(Regex(r"\p{L}"), "isolated"))


def numbers() -> set[int]:
    r"""Return what `\\p{N}` matches in the package's regular expressions."""
    return _matched(pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"))


def digits() -> set[int]:
    """Return what the package's pre-tokenizer Digits isolates."""
    return _matched(pre_tokenizers.Digits(individual_digits=True))


def composing() -> set[int]:
    """Return characters that the form NFC may change, alone or beside others.

    Also those that this Python's version of Unicode does not know.
    """
    seconds = set[int]()
    for code in code_points():
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            seconds.add(int(parts[1], 16))
    jamo = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    return seconds | jamo | set(filter(_may_change, code_points()))


def _may_change(code: int) -> bool:
    letter = chr(code)
    return (
        unicodedata.category(letter) == "Cn"
        or unicodedata.combining(letter) != 0
        or not unicodedata.is_normalized("NFC", letter)
    )


def _matched(splitter: "pre_tokenizers.PreTokenizer") -> set[int]:
    """Return the characters that a pre-tokenizer parts from those around them."""

    def is_parted(code: int) -> bool:
        return len(splitter.pre_tokenize_str(f"\0{chr(code)}\0")) == 3

    return set(filter(is_parted, code_points()))


def ranges_of(codes: Iterable[int]) -> list[tuple[int, int]]:
    """Return code points as ranges: first and last."""
    made: list[tuple[int, int]] = []
    for code in sorted(codes):
        if made and made[-1][1] == code - 1:
            made[-1] = made[-1][0], code
        else:
            made.append((code, code))
    return made


def table(name: str, codes: Iterable[int]) -> str:
    """Return the C++ table of code points."""
    items = [f"{{{first:#x}, {last:#x}}}," for first, last in ranges_of(codes)]
    lines = [
        "    " + " ".join(items[at : at + _COLUMNS])
        for at in range(0, len(items), _COLUMNS)
    ]
    return "\n".join([f"const Range {name}[] = {{", *lines, "};\n"])


TABLES: Final[dict[str, Callable[[], set[int]]]] = {
    "kLetters": letters,
    "kNumbers": numbers,
    "kDigits": digits,
    "kComposing": composing,
}


def main() -> None:
    """Write the tables."""
    parts = [table(name, make()) for name, make in TABLES.items()]
    WRITTEN.write_text("\n".join([_HEAD, *parts]))


if __name__ == "__main__":
    main()
