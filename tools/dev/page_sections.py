"""Update tables that programs write between two marks of a page.

In: the text of a page, a `Section` with the lines of a table. Out: the text in which
that section has these lines; lines of the same table that were not measured again stay.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, text about a table, and the table.

    Attributes:
        title: heading, with its hashes.
        text: text of one or more paragraphs.
        head: titles of the columns.
        lines: first cell of a line -> other cells of the line.
        order: order of lines by first cell; lines that it does not name follow.
    """

    title: str
    text: str
    head: Sequence[str]
    lines: Mapping[str, Sequence[str]]
    order: Sequence[str] = ()

    def laid_out(self) -> str:
        """Return the section's text on the page."""
        order = [*self.order, *self.lines]
        names = sorted(self.lines, key=order.index)
        lines = [self.head, ["---"] * len(self.head)]
        lines += [[name, *self.lines[name]] for name in names]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"{self.title}\n\n{self.text.strip()}\n\n{table}"


def kept_part(page: str, mark: str) -> str:
    """Return a page's marked part with its two marks, or only marks if it has none.

    Raises:
        ValueError: only one of the two marks is there.
    """
    inner = _three(page, mark)[1] if mark in page else "\n"
    return f"{mark}{inner}{mark}"


def with_section(page: str, mark: str, section: Section) -> str:
    """Return a page with a section in the marked part, in its old place or at the end.

    Lines that the section lacks are kept if its text and its columns are the same.

    Raises:
        ValueError: the page does not have both marks.
    """
    before, inner, after = _three(page, mark)
    parts = re.split(r"^(?=#)", inner.strip("\n") + "\n", flags=re.MULTILINE)
    parts = [part.strip("\n") for part in parts if part.strip("\n")]
    made, place = section, len(parts)
    for at, part in enumerate(parts):
        if part.splitlines()[0] == section.title:
            made, place = _merged(part, section), at
    parts[place : place + 1] = [made.laid_out()]
    return f"{before}{mark}\n" + "\n\n".join(parts) + f"\n\n{mark}{after}"


def _three(page: str, mark: str) -> tuple[str, str, str]:
    pieces = page.split(mark)
    if len(pieces) != 3:
        raise ValueError(f"{len(pieces) - 1} marks, not two: {mark}")
    return pieces[0], pieces[1], pieces[2]


def _merged(part: str, section: Section) -> Section:
    """Return a section, with the lines added that only its old version has."""
    head = Section(section.title, section.text, section.head, {}).laid_out()
    if not part.startswith(head):
        return section
    known = {}
    for line in part[len(head) :].splitlines():
        if line:
            name, *cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
            known[name] = cells
    lines = known | dict(section.lines)
    return Section(section.title, section.text, section.head, lines, section.order)
