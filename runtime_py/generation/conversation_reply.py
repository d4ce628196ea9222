"""`Reply`: an answer as a message: its text, its reasoning, its calls of tools.

In: the form of the answers to a chat template, a generation. Out: pieces of the answer
as it is made, and the message that the template takes back. Where the form is unknown,
an answer is text alone.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kvc.runtime.generation.conversation_script import Script, Turn
from kvc.runtime.generation.generation import Generation
from kvc.runtime.tokenizers import Message, Tokenizer
from kvc.runtime.tokenizers.library import JsonTokenizer
from kvc.runtime.tokenizers.reply_forms import CALLS, CONTENT, Form, form_of
from kvc.runtime.tokenizers.reply_parser import Piece, ReplyParser
from kvc.schema.errors import BadChatTemplate

_ID: Final = re.compile(r"\bid\b|\bcall_id\b|\btool_call_id\b")


class UnknownAnswers(UserWarning):
    """The form of a model's answers is unknown: calls of tools stay in their text."""


def form_for(script: Script, stacklevel: int) -> Form | None:
    """Return the form of the answers in a conversation, None if it is unknown.

    Warns:
        UnknownAnswers: there are tools, but the form is unknown, or the template does
            not read tools; or the bundle's own description of the form is invalid.
    """
    form, problem = form_and_problem(script)
    if problem:
        warnings.warn(problem, UnknownAnswers, stacklevel=stacklevel + 1)
    return form


def form_and_problem(script: Script) -> tuple[Form | None, str]:
    """Return the form of the answers as `form_for`, and what is wrong; "" if nothing.

    Args:
        script: the script of the conversation.
    """
    template = script.template
    if template is None:
        return None, ""
    try:
        form, problem = template.form(script.tools), ""
    except BadChatTemplate as error:
        form = form_of(template.renderer_for(script.tools).text)
        problem = f"{error}; it is left out"
    if script.tools and "tools" not in template.renderer_for(script.tools).text:
        problem = f"{template.file} does not tell the model of tools"
    elif script.tools and form is None:
        problem = problem or f"{template.file} is of no known family of models"
        problem += ": calls of tools stay in the text of answers"
    return form, problem


def showing(tokenizer: Tokenizer, form: Form | None) -> Tokenizer:
    """Return a tokenizer whose text has the special tokens that are marks of a form."""
    if form is None or not isinstance(tokenizer, JsonTokenizer):
        return tokenizer
    return tokenizer.showing(form.shows)


class Reply:
    """One answer of a conversation."""

    def __init__(self, script: Script, form: Form | None, turn: Turn) -> None:
        """Begin the answer to a turn."""
        self._script = script
        self._parser = ReplyParser(form, turn.text, script.tools)
        self._begun = self._finished = False

    @property
    def problems(self) -> tuple[str, ...]:
        """Return why texts that begin as calls were left in the content."""
        return tuple(self._parser.problems)

    @property
    def calls(self) -> Sequence[object]:
        """Return the calls of tools so far, in the form of chat templates."""
        return self._parser.calls

    def pieces(self, answer: Generation) -> Iterator[Piece]:
        """Run a generation; yield the pieces of the answer, none empty."""
        for text in answer.text():
            yield from self.push(text, answer.tokens)
        yield from self.finish()

    def push(self, text: str, tokens: Sequence[int]) -> Sequence[Piece]:
        """Add text of the answer; return the pieces that later text cannot change.

        Args:
            text: the new text; it is not empty.
            tokens: the tokens of the answer so far.
        """
        if not self._begun:
            self._begun = True
            text = self._script.without_first_space(text, tokens)
        return self._parser.push(text)

    def finish(self) -> Sequence[Piece]:
        """End the answer; return the pieces that `push` has not returned yet."""
        if self._finished:
            return ()
        self._finished = True
        return self._parser.finish()

    def message(self, before: Sequence[Message]) -> Message:
        """Return the message of the answer so far; the answer ends.

        Args:
            before: the earlier messages, whose calls have other ids.
        """
        self.finish()
        fields = self._parser.message()
        content = fields.pop(CONTENT)
        made = self._script.message("assistant", str(content or ""))
        calls = fields.pop(CALLS, None)
        told = {} if calls is None else {CALLS: self._with_ids(calls, before)}
        return {**fields, **made, **told}

    def _with_ids(self, calls: object, before: Sequence[Message]) -> object:
        """Return calls with ids, if the template reads ids; those of the model stay."""
        template = self._script.template
        assert template is not None
        reads = _ID.search(template.renderer_for(self._script.tools).text)
        if reads is None or not isinstance(calls, list):
            return calls
        number = sum(len(_calls_of(message)) for message in before)
        return [
            {"id": f"call{number + index:05}", **one} if isinstance(one, dict) else one
            for index, one in enumerate(calls, 1)
        ]


def _calls_of(message: Mapping[str, object]) -> Sequence[object]:
    found = message.get(CALLS)
    return found if isinstance(found, list) else ()
