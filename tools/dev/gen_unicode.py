"""Write the classes of characters that libkvc's tokenizer needs.

In: the package tokenizers, whose regular expressions tell which characters are letters,
numbers and digits, and whose normalizers tell how characters are composed. Out: tables
in `runtime_py/native/libkvc/unicode_*.inc`. Run it again when the package changes its
version of Unicode.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from tokenizers import Regex, normalizers, pre_tokenizers

ROOT: Final = Path(__file__).parents[2]
WRITTEN: Final = ROOT / "runtime_py/native/libkvc/unicode_classes.inc"
_HEAD: Final = """\
// Made by tools/dev/gen_unicode.py: do not edit. Ranges of code points, first and last.
"""
COMPOSING: Final = WRITTEN.with_name("unicode_composing.inc")
_TRIPLE_HEAD: Final = """\
// Made by tools/dev/gen_unicode.py: do not edit. Classes: first and last
// character, class. Decompositions: a character, and what it is made of.
"""
_COLUMNS: Final = 6
_TRIPLES: Final = 5
_NFC, _NFD = normalizers.NFC(), normalizers.NFD()

Triple = tuple[int, int, int]


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


def classes() -> dict[int, int]:
    """Return the canonical combining class of each character that has one.

    The package's version of Unicode may be another than Python's. So a class is that of
    a mark that has always been there, in whose place NFC puts the character.
    """
    first, marks = "\u0334", dict[int, str]()  # the class of the first is 1
    for code in code_points():
        if unicodedata.combining(chr(code)) and _moves(first, chr(code)):
            marks.setdefault(unicodedata.combining(chr(code)), chr(code))
    others = sorted(marks)
    made = {}
    for code in code_points():
        if _moves(first, chr(code)):
            lower = [number for number in others if _moves(marks[number], chr(code))]
            made[code] = next(n for n in others if n not in lower)
        elif _moves(chr(code), marks[others[0]]):
            made[code] = 1
    return made


def _moves(mark: str, letter: str) -> bool:
    """Tell whether NFC moves a mark before a letter, which stands ahead of it."""
    ordered = _NFC.normalize_str(f"!{letter}{mark}")
    return letter != mark and ordered == f"!{mark}{letter}"


def decompositions() -> tuple[list[Triple], list[Triple]]:
    """Return what characters are made of: those that NFC composes, and the others.

    Each is a character and one or two others, 0 for none. Hangul is left out.
    """
    composed, others = list[Triple](), list[Triple]()
    for code in code_points():
        parts = _NFD.normalize_str(chr(code))
        if parts == chr(code) or 0xAC00 <= code < 0xD7A4:
            continue
        if _NFC.normalize_str(chr(code)) == chr(code):
            first = _NFC.normalize_str(parts[:-1])
            assert len(first) == 1
            composed.append((code, ord(first), ord(parts[-1])))
        elif len(parts) < 3:
            others.append((code, ord(parts[0]), ord(parts[1:] or "\0")))
        else:
            found = unicodedata.decomposition(chr(code)).split()
            halves = (*(int(part, 16) for part in found), 0)
            others.append((code, halves[0], halves[1]))
    return composed, others


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


def triples(name: str, items: Iterable[Triple]) -> str:
    """Return the C++ table of triples."""
    texts = [
        f"{{{code:#x}, {first:#x}, {second:#x}}}," for code, first, second in items
    ]
    lines = [
        "    " + " ".join(texts[at : at + _TRIPLES])
        for at in range(0, len(texts), _TRIPLES)
    ]
    return "\n".join([f"const Triple {name}[] = {{", *lines, "};\n"])


TABLES: Final[dict[str, Callable[[], set[int]]]] = {
    "kLetters": letters,
    "kNumbers": numbers,
    "kDigits": digits,
}


def class_ranges(found: dict[int, int]) -> Iterator[Triple]:
    """Yield runs of characters of one class: the first, the last, the class."""
    by_class: dict[int, list[int]] = {}
    for code, number in found.items():
        by_class.setdefault(number, []).append(code)
    yield from sorted(
        (first, last, number)
        for number, codes in by_class.items()
        for first, last in ranges_of(codes)
    )


def main() -> None:
    """Write the tables."""
    parts = [table(name, make()) for name, make in TABLES.items()]
    WRITTEN.write_text("\n".join([_HEAD, *parts]))
    composed, others = decompositions()
    parts = [
        triples("kClasses", class_ranges(classes())),
        triples("kComposed", composed),
        triples("kDecomposed", others),
    ]
    COMPOSING.write_text("\n".join([_TRIPLE_HEAD, *parts]))


if __name__ == "__main__":
    main()
