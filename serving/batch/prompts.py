"""`Prompts`: from rows to requests of a scheduler.

messages --chat template--> text --tokenizer--> tokens, with settings: a request
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from kvc.runtime import Program
from kvc.runtime.generation import Arguments
from kvc.runtime.sessions.methods import find_roles
from kvc.runtime.tokenizers import (
    ChatTemplate,
    chat_template_of,
    tokenizer_of,
)
from kvc.runtime.tokenizers.plain import Ids
from kvc.runtime.tokenizers.template_arguments import checked_arguments
from kvc.schema.errors import BadRow, BadSetting, UnknownName
from kvc.schema.frozen import frozen
from kvc.serving.batch.row_settings import RowSettings
from kvc.serving.batch.rows import Row
from kvc.serving.scheduling import Request


@frozen
class AdapterChoice:
    """The adapter of rows that name none.

    Attributes:
        name: the name of a loaded adapter, None for none.
        scale: what multiplies what it adds.
    """

    name: str | None = None
    scale: float = 1.0


_NONE: Final = AdapterChoice()


class Prompts:
    """Makes requests of rows, for one program.

    Attributes:
        tokenizer: makes texts of answers; None if the bundle has no tokenizer.
    """

    def __init__(
        self,
        program: Program,
        defaults: Arguments,
        adapter: AdapterChoice = _NONE,
    ) -> None:
        """Check what all rows have.

        Args:
            program: the program that will answer.
            defaults: the settings of rows that say nothing else.
            adapter: the adapter of rows that name none.

        Raises:
            UnknownName: the program cannot generate.
            BadSetting: it has an encoder, or a setting is impossible.
            MissingPackage, BadTokenizer: the bundle's tokenizer cannot be used.
        """
        check_generates(program)
        self._program, self._adapter = program, adapter
        self._settings = RowSettings(program.metadata, defaults)
        found = tokenizer_of(program)
        self.tokenizer = None if isinstance(found, Ids) else found

    @cached_property
    def _template(self) -> ChatTemplate:
        found = chat_template_of(self._program)
        if found is None:
            expected = "a bundle with a chat template; without one, rows have a prompt"
            raise BadSetting(name="messages", expected=expected, found="none")
        return found

    def request(self, row: Row) -> Request:
        """Return the request of a row.

        Raises:
            KvcError: the row is none, or cannot be turned into one.
        """
        if row.error is not None:
            raise row.error
        adapter = self._adapter
        if row.adapter is not None:
            if row.adapter not in self._program.adapters:
                known = tuple(self._program.adapters)
                raise UnknownName(kind="adapter", name=row.adapter, known=known)
            adapter = AdapterChoice(row.adapter)
        settings = self._settings.of(row.params, row.number - 1)
        if settings.stop_strings and self.tokenizer is None:
            expected = "none: the bundle has no tokenizer"
            raise BadSetting(
                name="stop_strings", expected=expected, found=settings.stop_strings
            )
        return Request(
            prompt=self._tokens(row),
            settings=settings,
            tokenizer=self.tokenizer,
            adapter=adapter.name,
            scale=adapter.scale,
        )

    def _tokens(self, row: Row) -> Sequence[int]:
        """Return the tokens of a row's prompt.

        Raises:
            KvcError: as `ChatTemplate.render`; or there are none.
        """
        if isinstance(row.prompt, tuple):
            return row.prompt
        if self.tokenizer is None:
            expected = "token ids: the bundle has no tokenizer"
            raise BadSetting(name="prompt", expected=expected, found="a text")
        if row.prompt is not None:
            tokens = self.tokenizer.encode(row.prompt)
        else:
            messages = [_plain(one) for one in row.messages or ()]
            variables: dict[str, Any] = checked_arguments(row.variables)
            text = self._template.render(messages, tools=row.tools, **variables)
            tokens = self.tokenizer.encode(text, special=False)
        if not len(tokens):
            raise BadRow(reason="prompt: expected at least one token, got none")
        return list(tokens)


def _plain(message: Mapping[str, object]) -> Mapping[str, object]:
    """Return a message whose content is a text, if it was parts of text.

    Raises:
        BadRow: a part is no text.
    """
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image", "image_url", "input_image"):
            raise BadRow(reason="messages: batches take no pictures")
        if kind not in ("text", "input_text") or not isinstance(part.get("text"), str):
            raise BadRow(reason=f"messages: expected parts of text, got {part!r:.80}")
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


def check_generates(program: Program) -> None:
    """Check that a program can generate from tokens.

    Raises:
        UnknownName: it lacks a method of a role.
        BadSetting: it has an encoder.
    """
    for role in ("prefill", "decode"):
        find_roles(program, role)
    if "encode" in {method.role for method in program.methods.values()}:
        expected = "one without an encoder, for a batch"
        found = "one with an encoder"
        raise BadSetting(name="the bundle", expected=expected, found=found)
