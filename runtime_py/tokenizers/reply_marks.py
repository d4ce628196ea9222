"""Marks that begin and end the regions of an answer: texts, or patterns.

In: the text of an answer that has come so far. Out: the first mark in it that later
text cannot change, and how much text stands before any mark that may still come.
Patterns are those of the package regex, which knows of a match that more text may
complete; without the package those of `re`, which tell their matches only at the end.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, Protocol

from kvc.schema.frozen import frozen

_SECONDS: Final = 2.0  # for one search of a pattern; a bundle's patterns are untrusted

_SLOW: Final = "a pattern of the response_template takes too long"


@frozen
class Found:
    """A mark in a text.

    Attributes:
        start: where the mark begins.
        end: where it ends.
        groups: the named groups of its pattern.
    """

    start: int
    end: int
    groups: Mapping[str, str]


class Mark(Protocol):
    """What begins or ends a region."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts of the mark; empty for a pattern."""
        ...

    def find(self, text: str, final: bool) -> tuple[Found | None, int]:
        """Return the first mark in a text, and where the first unsure one begins.

        Args:
            text: the text so far.
            final: whether no more text will come; then nothing is unsure.
        """
        ...


@frozen
class Texts:
    """A mark that is one of several texts; of several at one place, the longest.

    Attributes:
        texts: the texts.
    """

    texts: tuple[str, ...]

    def find(self, text: str, final: bool) -> tuple[Found | None, int]:
        """Return the first text, and where one begins that more text may complete."""
        places = [(text.find(one), -len(one)) for one in self.texts]
        start, length = min((p for p in places if p[0] >= 0), default=(-1, 0))
        found = None if start < 0 else Found(start, start - length, {})
        if final:
            return found, len(text)
        return found, min(_partial(text, one) for one in self.texts)


def _partial(text: str, mark: str) -> int:
    """Return where the longest end of a text begins that may become a mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return len(text) - length
    return len(text)


class Pattern:
    """A mark that a pattern describes."""

    texts = ()

    def __init__(self, text: str) -> None:
        """Compile a pattern.

        Raises:
            ValueError: it is no pattern.
        """
        self._grows = False
        self._compiled: Any
        try:
            regex: Any = import_module("regex")
        except ImportError:
            try:
                self._compiled = re.compile(text, re.DOTALL)
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(str(error)) from error
            return
        try:
            self._compiled, self._grows = regex.compile(text, regex.DOTALL), True
        except (regex.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from error

    @property
    def groups(self) -> frozenset[str]:
        """Return the names of the pattern's groups."""
        return frozenset(self._compiled.groupindex)

    def find(self, text: str, final: bool) -> tuple[Found | None, int]:
        """Return the first match, and where one begins that more text may change.

        Raises:
            ValueError: the pattern takes too long.
        """
        if not final and not self._grows:
            return None, 0
        match = self._search(text, final)
        if match is None:
            return None, len(text)
        if not final and (match.partial or match.end() == len(text)):
            return None, match.start()
        groups = {k: v for k, v in match.groupdict().items() if v is not None}
        # An empty match at the beginning would be found again and again.
        found = Found(match.start(), match.end(), groups) if match.end() else None
        return found, len(text)

    def _search(self, text: str, final: bool) -> Any:  # noqa: ANN401  of two packages
        if not self._grows:
            return self._compiled.search(text)
        try:
            return self._compiled.search(text, partial=not final, timeout=_SECONDS)
        except TimeoutError as error:
            raise ValueError(_SLOW) from error

    def all_in(self, text: str) -> Iterator[Found]:
        """Yield all matches in a text; groups that took no part are empty.

        Raises:
            ValueError: the pattern takes too long.
        """
        limits = {"timeout": _SECONDS} if self._grows else {}
        try:
            for match in self._compiled.finditer(text, **limits):
                yield Found(match.start(), match.end(), match.groupdict(default=""))
        except TimeoutError as error:
            raise ValueError(_SLOW) from error
