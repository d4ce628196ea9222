"""Text for a terminal: safe names, readable sizes, columns."""

import unicodedata
from collections.abc import Iterable, Sequence

_HIDDEN = {
    "Cc",
    "Cf",
    "Cs",
    "Co",
    "Cn",
    "Zl",
    "Zp",
}  # characters that a terminal obeys or hides


def escape(text: str, keep: str = "") -> str:
    r"""Return the text with control and invisible characters as `\x1b` or `\u202e`.

    Names come from files of unknown origin; printed raw they could move the cursor, or
    recolour or reverse the text around them.
    """
    return "".join(
        char
        if char in keep or unicodedata.category(char) not in _HIDDEN
        else _code(char)
        for char in text
    )


def _code(char: str) -> str:
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def size(nbytes: int) -> str:
    """Return a size to three digits in decimal units: 512 B, 4.19 MB."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):  # the last one reached is used
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    if unit == "B":
        return f"{nbytes} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def plural(count: int, noun: str) -> str:
    """Return `1 blob`, `2 blobs`, `1,200 blobs`, `2 copies`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def share(part: int, whole: int) -> str:
    """Return a percentage with one decimal, `0.0%` of nothing."""
    return f"{100 * part / whole if whole else 0:.1f}%"


def columns(
    rows: Iterable[Sequence[str]], align: str = "", indent: int = 2
) -> list[str]:
    """Line rows up in columns, two spaces apart.

    Args:
        rows: equally long sequences of cells.
        align: `<` or `>` for each column; columns beyond it are left-aligned.
        indent: spaces before the first column.
    """
    cells = [tuple(row) for row in rows]
    if not cells:
        return []
    align = align.ljust(len(cells[0]), "<")
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    if align[len(widths) - 1] == "<":
        widths[-1] = 0  # the last column needs no padding
    return [
        (" " * indent + "  ".join(map(_pad, row, align, widths))).rstrip()
        for row in cells
    ]


def _pad(cell: str, side: str, width: int) -> str:
    return cell.rjust(width) if side == ">" else cell.ljust(width)
