"""`ReplyParser`: an answer in pieces of text, reasoning and calls, as it is made.

In: a form of answers, the prompt, pieces of an answer's text, with the special tokens
that are marks. Out: `Piece`s, each of one field of the message; at the end the message,
as chat templates take it back. The result is the same however the text is cut. What
cannot be read, such as a call that is no JSON, stays in the content as it stands.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.tokenizers.call_readers import types_of
from kvc.runtime.tokenizers.reply_forms import CALLS, CONTENT, Form, Region
from kvc.runtime.tokenizers.reply_marks import Found, Mark

_WHOLE: Final = Form("", ())
_NO_GROUPS: Final[Mapping[str, str]] = {}


class Piece(str):
    """A piece of an answer.

    Attributes:
        part: the field of the message that the piece belongs to: "content",
            "reasoning_content" or "tool_calls". The text of calls is as the model wrote
            it.
    """

    __slots__ = ("part",)
    part: str

    def __new__(cls, text: str, part: str = CONTENT) -> "Piece":
        """Return a piece of a field."""
        made = super().__new__(cls, text)
        made.part = part
        return made


class ReplyParser:
    """Parses one answer.

    Attributes:
        problems: why texts that begin as calls were left in the content.
    """

    def __init__(
        self,
        form: Form | None,
        prompt: str = "",
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            form: the form of answers; None if all is text.
            prompt: the text before the answer, which may have begun a region.
            tools: the JSON schemas of the tools, None if there are none.
        """
        self._form, self._types = form or _WHOLE, types_of(tools)
        self._rest = self._form.rest or Region("")
        has_tools = bool(tools)
        self._regions = [r for r in self._form.regions if has_tools or not r.first]
        self.problems: list[str] = []
        self._fields: dict[str, object] = dict(self._form.defaults or {})
        self._buffer = ""
        self._region, self._opening, self._groups = self._rest, "", _NO_GROUPS
        self._body = ""  # of a region that is read as a whole, or of a head
        self._kept: list[str] = []  # the text of a region that is text
        # Spaces at the end of the text so far; whether a mark stands before the text;
        # whether the text goes on from what could not be read.
        self._spaces, self._beside, self._goes_on = "", self._form.strips, False
        self._fresh = True  # nothing but spaces has come
        self._pieces: list[Piece] = []
        self._begin(prompt)

    def _begin(self, prompt: str) -> None:
        """Enter the region that the prompt has begun."""
        form = self._form
        if form.anchor is not None:
            ends = [found.end for found in form.anchor.all_in(prompt)]
            self.push(prompt[ends[-1] if ends else 0 :])
            return
        told = prompt.rstrip()
        for region in self._regions:
            for text in () if region.opens is None else region.opens.texts:
                if not region.first and told.endswith(text.rstrip()):
                    self._enter(region, "", {})
        if form.begin and told.endswith(form.begin):
            heads = (region for region in self._regions if region.head is not None)
            self._enter(next(heads), "", {})

    def push(self, text: str) -> list[Piece]:
        """Add text; return the pieces that later text cannot change."""
        if self._form is _WHOLE:
            self._emit(text)
        else:
            self._buffer += text
            self._run(final=False)
        return self._taken()

    def finish(self) -> list[Piece]:
        """End the answer; return the pieces that `push` has not returned yet."""
        self._run(final=True)
        if self._region.head is not None:
            self._give_up("its head does not end")
        else:
            self._leave("")
        return self._taken()

    @property
    def calls(self) -> Sequence[object]:
        """Return the calls of tools that have been read so far."""
        found = self._fields.get(CALLS)
        return found if isinstance(found, list) else ()

    def message(self) -> dict[str, object]:
        """Return the fields of the finished message; the content is always there."""
        whole = {CONTENT: "", **self._fields}
        defaults = self._form.defaults or {}
        return {
            name: value
            for name, value in whole.items()
            if name == CONTENT or name in defaults or value not in ("", [], {}, None)
        }

    def _taken(self) -> list[Piece]:
        taken, self._pieces = self._pieces, []
        return [piece for piece in taken if piece]

    # Marks

    def _run(self, final: bool) -> None:
        """Take all text from the buffer that cannot be the beginning of a mark."""
        while True:
            if self._fresh and self._region is self._rest and self._is_first(final):
                continue
            found, region, safe = self._next_mark(final)
            self._take(self._buffer[: safe if found is None else found.start])
            if found is None:
                self._buffer = self._buffer[safe:]
                return
            opening = self._buffer[found.start : found.end]
            self._buffer = self._buffer[found.end :]
            self._cross(region, opening, found.groups)

    def _is_first(self, final: bool) -> bool:
        """Enter a region that begins the answer; tell whether it has been entered."""
        text = self._buffer.lstrip()
        if not text and not final:
            return False
        self._fresh = False
        for region in self._regions:
            opens = () if region.opens is None else region.opens.texts
            if region.first and text.startswith(opens):
                self._enter(region, "", {})
                return True
        return False

    def _watched(self) -> list[tuple[Mark, Region | None]]:
        """Return the marks that count now, and the region that each opens."""
        region = self._region
        marks: list[tuple[Mark | None, Region | None]]
        if region is self._rest:
            marks = [(one.opens, one) for one in self._regions if not one.first]
        else:
            marks = [(region.head, None)]
        if region.head is None:
            marks.append((region.closes, None))
        return [(mark, one) for mark, one in marks if mark is not None]

    def _next_mark(self, final: bool) -> tuple[Found | None, Region | None, int]:
        """Return the first mark in the buffer, the region that it opens, safe text.

        The mark is None if there is none, or if more text may show an earlier one. That
        much text stands before any mark.
        """
        safe, best, opened = len(self._buffer), None, None
        if self._fresh and self._region is self._rest and not final:
            return None, None, 0  # spaces, before a region that may begin the answer
        for mark, region in self._watched():
            try:
                found, unsure = mark.find(self._buffer, final)
            except ValueError as error:
                self.problems.append(str(error))
                self._form, self._regions, self._region = _WHOLE, [], self._rest
                return None, None, len(self._buffer)
            safe = min(safe, unsure)
            if found is not None and (best is None or _key(found) < _key(best)):
                best, opened = found, region
        if best is not None and best.start < safe:
            return best, opened, safe
        return (best, opened, safe) if final else (None, None, safe)

    # Regions

    def _cross(
        self, region: Region | None, opening: str, groups: Mapping[str, str]
    ) -> None:
        """Leave the region before a mark, and enter the one after it."""
        if self._region.head is not None and self._region.choose is not None:
            head = self._opening + self._body
            self._enter(self._region.choose(head), head + opening, {})
        elif region is None:
            self._leave(opening)
        else:
            spaces, self._spaces = self._spaces, ""
            self._store_text()
            self._enter(region, spaces + opening, groups)

    def _enter(self, region: Region, opening: str, groups: Mapping[str, str]) -> None:
        self._region, self._opening, self._groups = region, opening, groups
        self._body, self._beside, self._fresh = "", True, False
        self._goes_on = False

    def _leave(self, closing: str) -> None:
        """Store what the region has, and go back to the text outside of regions."""
        region, self._beside, self._goes_on = self._region, True, False
        if region.read is not None:
            self._read(region, closing)
        else:
            if not closing and not self._form.strips:
                self._emit(self._spaces)
            self._store_text()
        self._spaces, self._body, self._region = "", "", self._rest

    def _read(self, region: Region, closing: str) -> None:
        """Store the values of a region that is read as a whole."""
        assert region.read is not None
        try:
            values = region.read(self._body, self._groups, self._types)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self._give_up("" if region.first else str(error), closing)
            return
        whole = self._opening + self._body + closing
        self._pieces.append(Piece(whole, region.field))
        if region.several:
            before = self._fields.get(region.field)
            listed = before if isinstance(before, list) else []
            self._fields[region.field] = [*listed, *values]
        elif values:
            self._fields[region.field] = values[-1]

    def _give_up(self, problem: str, closing: str = "") -> None:
        """Leave the text of a region in the content, as it stands."""
        whole = self._opening + self._body + closing
        if problem and whole.strip():
            self.problems.append(f"{whole.strip()[:80]!r} is no call: {problem}")
        self._pieces.append(Piece(whole))
        self._fields[CONTENT] = f"{self._fields.get(CONTENT) or ''}{whole}"
        self._beside, self._goes_on = False, True

    # Text

    def _take(self, text: str) -> None:
        """Add text to the region."""
        if self._region.read is not None or self._region.head is not None:
            self._body += text
            return
        if self._region is self._rest and self._form.rest is None:
            return
        text = text.lstrip() if self._beside else text
        if text:
            self._beside = False
            text = self._spaces + text
            kept = text.rstrip()
            self._spaces = text[len(kept) :]
            self._emit(kept)

    def _emit(self, text: str) -> None:
        """Add text to the region that later text cannot change."""
        if not text:
            return
        region = self._region
        if not self._kept and not self._goes_on and self._fields.get(region.field):
            text = (region.join or "") + text
        self._kept.append(text)
        self._pieces.append(Piece(text, region.field))

    def _store_text(self) -> None:
        """Add the text of a region of text to its field."""
        text, self._kept = "".join(self._kept), []
        field, before = self._region.field, self._fields.get(self._region.field)
        if text and field:
            adds = self._region.join is not None and isinstance(before, str)
            self._fields[field] = f"{before}{text}" if adds else text


def _key(found: Found) -> tuple[int, int]:
    """Return what the first of two marks has less of: its start, then its rest."""
    return found.start, -found.end
