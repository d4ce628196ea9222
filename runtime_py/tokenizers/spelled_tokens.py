"""Names of special tokens in the user's texts, kept from becoming special tokens.

    messages --names become placeholders--> template --> text --pieces--> tokens

In: what a template is given, the tokens that it may write. Out: the rendered text in
pieces: those of the template, and names that the user wrote, which are encoded as plain
text. This is possible exactly when the template treats placeholders as it treats the
names: with the names put back, the text is the one that it renders without
placeholders. A template that cuts, escapes or searches texts at the names is refused.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from kvc.runtime.tokenizers.interface import Tokenizer
from kvc.runtime.tokenizers.library import JsonTokenizer
from kvc.runtime.tokenizers.plain import Bytes, Ids
from kvc.schema.errors import BadChatTemplate, BadSetting
from kvc.schema.frozen import frozen

_FENCES: Final = range(0x10FFFD, 0x10F000, -1)  # characters that no text should have
_NUMBERS: Final = 0x100000  # the character of placeholder 0

Render = Callable[[Mapping[str, object]], str]


@frozen
class Spelled:
    """A rendered text, with placeholders for names that the user wrote.

    Attributes:
        text: the text, with placeholders.
        fence: the character at both ends of a placeholder, "" if there are none.
        names: the text of each placeholder, by number.
    """

    text: str
    fence: str = ""
    names: tuple[str, ...] = ()

    @property
    def whole(self) -> str:
        """Return the text as the template renders it."""
        return "".join(text for text, _ in self.pieces)

    @property
    def pieces(self) -> list[tuple[str, bool]]:
        """Return the text in pieces, and whether each is a name that the user wrote."""
        if not self.fence:
            return [(self.text, False)]
        parts = re.split(f"{self.fence}(.){self.fence}", self.text)
        return [
            (self.names[ord(part) - _NUMBERS], True) if number % 2 else (part, False)
            for number, part in enumerate(parts)
        ]


def names_in(tokenizer: Tokenizer, template: str) -> tuple[str, ...]:
    """Return the names of the tokens that a template may write.

    As in transformers (5.23), these are special tokens, and other added tokens that
    stand in the template.

    Raises:
        BadSetting: it is unknown which names the tokenizer takes for tokens.
    """
    if isinstance(tokenizer, Bytes | Ids):
        return ()
    if not isinstance(tokenizer, JsonTokenizer):
        expected = "'tokens': names of tokens are only known of a tokenizer.json"
        raise BadSetting(name="special_tokens", expected=expected, found="'text'")
    found = [
        name
        for name, special in tokenizer.added.items()
        if name and (special or (name in template and not name.isspace()))
    ]
    return tuple(sorted(found, key=len, reverse=True))


def spelled(
    given: Mapping[str, object], render: Render, names: Sequence[str]
) -> Spelled:
    """Return the text that a template renders, with placeholders for names.

    Args:
        given: what the template is given: texts, lists and mappings of texts.
        render: renders what it is given.
        names: the names of tokens, the longest first.

    Raises:
        BadSetting: the template treats the names in a text in a way of its own.
        KvcError: as `render`.
    """
    plain = made = Spelled(render(given))
    if not names:
        return plain
    pattern = re.compile("|".join(map(re.escape, names)))
    masking = _Masking(given, pattern)
    masked = {name: masking.masked(value) for name, value in given.items()}
    if masking.found:
        made = _rendered(masked, render, masking, plain.text)
    # An end of a text may become a name together with what the template puts there.
    more = _Masking(given, pattern, _ends(names), masking.found)
    masked = {name: more.masked(value) for name, value in given.items()}
    if len(more.found) == len(masking.found):
        return made
    ends = _rendered(masked, render, more, None)
    if len(pattern.findall(ends.text)) == len(pattern.findall(made.text)):
        return made
    return _rendered(masked, render, more, plain.text)


def _rendered(
    masked: Mapping[str, object],
    render: Render,
    masking: "_Masking",
    expected: str | None,
) -> Spelled:
    """Return the text of what has placeholders.

    Raises:
        BadSetting: it is not the expected text with names in place of placeholders.
    """
    found = tuple(masking.found)
    try:
        made: Spelled | None = Spelled(render(masked), masking.fence, found)
    except BadChatTemplate:
        made = None
    if expected is None and made is None:
        return Spelled("")
    if made is None or (expected is not None and made.whole != expected):
        wanted = "'tokens', since the chat template rewrites texts with "
        wanted += ", ".join(found)[:80]
        raise BadSetting(name="special_tokens", expected=wanted, found="'text'")
    return made


def _ends(names: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the beginnings and the ends of names, without whole names."""
    places = [(name, place) for name in names for place in range(1, len(name))]
    first = frozenset(name[:place] for name, place in places)
    return first, frozenset(name[place:] for name, place in places)


class _Masking:
    """Puts placeholders in place of names.

    Attributes:
        fence: the character at both ends of a placeholder.
        found: the names, and parts of names at the ends of texts, by number.
    """

    def __init__(
        self,
        given: object,
        pattern: "re.Pattern[str]",
        ends: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset()),
        found: Sequence[str] = (),
    ) -> None:
        """Choose a character that no text has.

        Args:
            given: the value with all texts.
            pattern: matches any name.
            ends: beginnings of names, which have placeholders at the end of texts; ends
                of names, which have them at the beginning.
            found: the first names that have placeholders.

        Raises:
            BadSetting: there is no such character.
        """
        used = set[str]()
        _note_letters(given, used)
        free = (chr(code) for code in _FENCES if chr(code) not in used)
        self.fence = next(free, "")
        if not self.fence:
            expected = "texts with other characters than U+10F000 to U+10FFFD"
            raise BadSetting(name="messages", expected=expected, found="all of them")
        self._pattern, (self._begins, self._ends) = pattern, ends
        self._most = max(map(len, self._begins), default=0)
        self.found = list(found)

    def masked(self, value: object) -> object:
        """Return a value with placeholders in all of its texts."""
        match value:
            case str():
                return self._masked(value)
            case Mapping():
                return {self.masked(k): self.masked(one) for k, one in value.items()}
            case list() | tuple():
                return [self.masked(one) for one in value]
        return value

    def _masked(self, text: str) -> str:
        made = self._pattern.sub(lambda match: self._placeholder(match[0]), text)
        # A template may strip texts, so white space at an end counts, or it does not.
        for start in dict.fromkeys((0, len(made) - len(made.lstrip()))):
            lengths = range(min(self._most, len(made) - start), 0, -1)
            ends = (start + n for n in lengths if made[start : start + n] in self._ends)
            if end := next(ends, 0):
                made = made[:start] + self._placeholder(made[start:end]) + made[end:]
                break
        for end in dict.fromkeys((len(made), len(made.rstrip()))):
            lengths = range(min(self._most, end), 0, -1)
            starts = (end - n for n in lengths if made[end - n : end] in self._begins)
            if (start := next(starts, -1)) >= 0:
                return made[:start] + self._placeholder(made[start:end]) + made[end:]
        return made

    def _placeholder(self, name: str) -> str:
        if name not in self.found:
            self.found.append(name)
        return f"{self.fence}{chr(_NUMBERS + self.found.index(name))}{self.fence}"


def _note_letters(value: object, used: set[str]) -> None:
    match value:
        case str():
            used.update(value)
        case Mapping():
            for key, one in value.items():
                _note_letters(key, used)
                _note_letters(one, used)
        case list() | tuple():
            for one in value:
                _note_letters(one, used)


def encode(tokenizer: Tokenizer, made: Spelled) -> list[int]:
    """Return the tokens of a text whose placeholders are plain text.

    A piece is encoded behind a line break, so that it begins as in the middle of a
    text, as transformers does.

    Raises:
        BadSetting: the tokenizer makes a special token of a name in any case.
    """
    (first, _), *others = made.pieces
    tokens = list(tokenizer.encode(first, special=False))
    for text, is_name in others:
        if not text:
            continue
        if not is_name:
            tokens += _behind_a_break(tokenizer, text)
            continue
        assert isinstance(tokenizer, JsonTokenizer)
        plain = _behind_a_break(tokenizer.without_added, text)
        if tokenizer.token(text) in plain:
            expected = f"'tokens', as the tokenizer makes a token of {text!r} always"
            raise BadSetting(name="special_tokens", expected=expected, found="'text'")
        tokens += plain
    return tokens


def plain_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text in which names of special tokens are plain text.

    What the tokenizer puts around any text is around it.

    Raises:
        BadSetting: as `names_in`, `spelled` and `encode`.
    """
    names = names_in(tokenizer, "")
    made = spelled({"text": text}, lambda given: str(given["text"]), names)
    whole, bare = list(tokenizer.encode("a")), list(tokenizer.encode("a", False))
    starts = range(len(whole) - len(bare) + 1)
    at = next((n for n in starts if whole[n : n + len(bare)] == bare), 0)
    return [*whole[:at], *encode(tokenizer, made), *whole[at + len(bare) :]]


class _Encoder(Protocol):
    def encode(self, text: str, special: bool = True) -> Sequence[int]: ...


def _behind_a_break(tokenizer: _Encoder, text: str) -> list[int]:
    lead = list(tokenizer.encode("\n", special=False))
    found = list(tokenizer.encode("\n" + text, special=False))
    if found[: len(lead)] == lead:
        return found[len(lead) :]
    return list(tokenizer.encode(text, special=False))
