"""`Matcher`: tells which tokens may follow in an answer that has a form.

In: a form, the bundle's tokenizer.json, the tokens of an answer so far. Out: which
tokens may follow, which one must, whether the answer is complete. The package
llguidance (`kvc[grammar]`) does the work. A matcher is always brought to the tokens
that it is asked about: it goes back to what these have in common with the tokens that
it has read. So a copy of a sampler, which guesses for a draft, may share it.
"""

import json
import re
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import numpy as np

from kvc.runtime.generation.constraints import Constraint
from kvc.runtime.generation.logits import Ids, Logits
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.sessions.methods import Callables
from kvc.runtime.tokenizers.selecting import TOKENIZER
from kvc.schema.errors import BadSetting, MissingPackage, UnusableLogits, reason_of
from kvc.schema.types import Dim

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

_INSTALL: Final = "pip install 'kvc[grammar]'"
# Models that are not sure write white space forever, where any is allowed.
_JSON: "Final[JsonCompileOptions]" = {"whitespace_pattern": r"[ ]?|\n[ ]{0,16}"}
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
_DIGITS: Final = {r"\d": "[0-9]"}
_TOKENIZERS: Final[WeakKeyDictionary[object, dict[tuple[int, ...], "LLTokenizer"]]] = (
    WeakKeyDictionary()
)


def matchers_of(
    session: Callables, settings: GenerationSettings, vocabulary: Dim
) -> Callable[[], "Matcher | None"]:
    """Return a function that makes a matcher for each answer of a generation.

    The function returns None if the settings ask for no form.

    Args:
        session: the program, or a session of it.
        settings: the settings of the generation.
        vocabulary: how many logits the model returns for a token.

    Raises:
        MissingPackage: llguidance is not installed.
        BadSetting: the bundle has no tokenizer.json, or llguidance cannot read it; or
            llguidance does not understand the form, or part of it.
    """
    constraint = settings.constraint
    if constraint is None:
        return lambda: None
    package = _llguidance()
    assert isinstance(vocabulary, int), "a model has a fixed number of logits"
    tokenizer = _tokenizer_of(session, vocabulary, settings.stop_tokens)
    try:
        grammar = _grammar_of(package.LLMatcher, constraint)
    except ValueError as error:
        raise _refused(constraint, reason_of(error)) from error
    first: LLMatcher = package.LLMatcher(tokenizer, grammar, log_level=0)
    if first.is_error():
        raise _refused(constraint, first.get_error())
    ends = frozenset(map(int, tokenizer.eos_tokens))
    return lambda: Matcher(first.deep_copy(), tokenizer, ends)


def _tokenizer_of(
    session: Callables, vocabulary: int, stop_tokens: Sequence[int]
) -> "LLTokenizer":
    """Return the bundle's tokenizer, read once for all sessions of a program.

    Raises:
        MissingPackage: llguidance is not installed.
        BadSetting: the bundle has no tokenizer.json, or llguidance cannot read it.
    """
    stops = tuple(token for token in stop_tokens if token < vocabulary)
    read = _TOKENIZERS.setdefault(session.program_key, {})
    if stops in read:
        return read[stops]
    if TOKENIZER not in session.files:
        found = session.metadata.get("tokenizer", "no tokenizer")
        expected = f"a bundle with {TOKENIZER}, for an answer of a given form"
        raise BadSetting(name="tokenizer", expected=expected, found=found)
    text = session.files[TOKENIZER].decode("utf-8", "replace")
    try:
        made: LLTokenizer = _llguidance().LLTokenizer(
            text, n_vocab=vocabulary, eos_token=list(stops) or None
        )
    except Exception as error:
        expected = f"one that llguidance reads ({reason_of(error)})"
        found = "the bundle's"
        raise BadSetting(name=TOKENIZER, expected=expected, found=found) from error
    return read.setdefault(stops, made)


class Matcher:
    """Tells for the tokens of an answer so far what may follow.

    Attributes:
        ends: the tokens that end a complete answer: the stop tokens, or if there are
            none, what llguidance takes for one.
    """

    def __init__(
        self, matcher: "LLMatcher", tokenizer: "LLTokenizer", ends: frozenset[int]
    ) -> None:
        """Begin before the first token of an answer."""
        self._matcher, self._tokenizer, self.ends = matcher, tokenizer, ends
        self._read: Ids = np.zeros(0, np.int64)

    def allowed(self, made: Ids, logits: Logits) -> Logits:
        """Return logits float32 [vocab], -inf for tokens that must not follow.

        Args:
            made: the tokens of the answer so far.
            logits: float32 [vocab].

        Raises:
            UnusableLogits: the tokens so far do not have the form.
        """
        forced = self.forced(made)
        if forced is not None:
            only: Logits = np.full_like(logits, -np.inf)
            only[forced] = logits[forced]
            return only
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(bits, count=logits.size, bitorder="little")
        left: Logits = np.where(allowed.view(np.bool_), logits, np.float32(-np.inf))
        return left

    def forced(self, made: Ids) -> int | None:
        """Return the only token that can follow, None if there are several.

        Raises:
            UnusableLogits: the tokens so far do not have the form.
        """
        self._go_to(made)
        tokens = self._matcher.compute_ff_tokens()
        self._check()
        if tokens and not self._matcher.validate_tokens(tokens[:1]):
            # A text that is the name of an added token: llguidance (1.9) proposes the
            # token, but takes the text in other tokens alone.
            text = self._matcher.compute_ff_bytes().decode("utf-8", "ignore")
            tokens = self._tokenizer.greedy_tokenize(text)
        return tokens[0] if tokens else None

    def is_over(self, made: Ids) -> bool:
        """Tell whether the answer is complete and nothing can follow.

        Raises:
            UnusableLogits: the tokens do not have the form.
        """
        self._go_to(made)
        return bool(self._matcher.is_stopped())

    def is_complete(self, made: Ids) -> bool:
        """Tell whether the answer has the form if it ends here."""
        try:
            self._go_to(made)
        except UnusableLogits:
            return False
        return bool(self._matcher.is_stopped() or self._matcher.is_accepting())

    def _go_to(self, made: Ids) -> None:
        """Bring the matcher to the tokens of an answer."""
        least = min(self._read.size, made.size)
        differing = np.flatnonzero(self._read[:least] != made[:least])
        common = int(differing[0]) if differing.size else least
        if common < self._read.size:
            if not self._matcher.rollback(self._read.size - common):
                self._matcher.reset()
                common = 0
            self._read = self._read[:common]
        rest = made[common:].tolist()
        if not rest:
            return
        taken = self._matcher.try_consume_tokens(rest)
        self._read = made[: common + taken].copy()
        self._check()
        if taken < len(rest):
            # Another setting forced it, or it follows a finished answer.
            reason = f"token {rest[taken]} of the answer does not fit the asked form"
            raise UnusableLogits(reason=reason)

    def _check(self) -> None:
        if self._matcher.is_error():
            # What follows is the inner state of llguidance, of many lines.
            told = self._matcher.get_error().partition("<state>")[0].strip()
            raise UnusableLogits(reason=told)


def _grammar_of(matcher: "type[LLMatcher]", constraint: Constraint) -> str:
    """Return a form as a grammar of llguidance.

    Raises:
        ValueError: the text is not a form.
    """
    content = constraint.content
    if constraint.kind == "json_schema":
        return matcher.grammar_from_json_schema(content, overrides=_JSON)
    if constraint.kind == "regex":
        return matcher.grammar_from_regex(_of_ascii_digits(content))
    if constraint.kind == "choices":
        texts = " | ".join(json.dumps(text) for text in json.loads(content))
        return matcher.grammar_from_lark(f"start: {texts}")
    from llguidance import grammar_from

    return grammar_from("gbnf" if "::=" in content else "lark", content)


def _of_ascii_digits(pattern: str) -> str:
    r"""Return a pattern whose `\d` is 0 to 9, as in `pattern` of a JSON Schema.

    llguidance lets it be a digit of any script, of which models write odd ones if they
    would rather write something else. It reads classes within classes, too.
    """
    return _ESCAPED.sub(lambda one: _DIGITS.get(one[0], one[0]), pattern)


def _refused(constraint: Constraint, reason: str) -> BadSetting:
    what = {"json_schema": "a JSON Schema", "regex": "a regular expression"}
    name = what.get(constraint.kind, "a grammar")
    expected = f"{name} that llguidance supports ({_essential(reason)})"
    found = constraint.content[:80]
    return BadSetting(name=constraint.kind, expected=expected, found=found)


def _essential(reason: str) -> str:
    """Return the line that says what is wrong: others show where, by columns."""
    lines = reason.strip().splitlines() or [""]
    of_regex = [line for line in lines if line.startswith("error: ")]
    return of_regex[0].removeprefix("error: ") if of_regex else lines[0]


def _llguidance() -> ModuleType:
    """Return the package llguidance.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        import llguidance
    except ImportError as error:
        raise MissingPackage(
            what="an answer of a given form",
            package="llguidance",
            install=_INSTALL,
            reason=reason_of(error),
        ) from error
    return llguidance
