"""`ChatTemplate`: render a conversation as text in the form the model was trained on.

In: the files of a bundle: chat_template.jinja, or the entry "chat_template" of
chat_template.json or tokenizer_config.json; the latter also names the special tokens.
Out: the text that `apply_chat_template` of transformers returns. A template is code of
the model's authors. It runs in the sandbox of jinja2, in a subprocess (`rendering.py`),
and has access only to strings. Its variables come from `template_arguments.py` and
`special_names.py`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.tokenizers.interface import TextSource, Tokenizer
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.runtime.tokenizers.reply_forms import Form, form_of
from kvc.runtime.tokenizers.response_templates import described_form
from kvc.runtime.tokenizers.special_names import special_tokens
from kvc.runtime.tokenizers.template_arguments import (
    Continuing,
    Document,
    Message,
    Tool,
    checked_documents,
    clean_messages,
    schemas_of,
)
from kvc.schema.errors import BadChatTemplate
from kvc.schema.frozen import frozen

_TEMPLATE: Final = "chat_template.jinja"
_OF_PROCESSOR: Final = "chat_template.json"
_CONFIG: Final = "tokenizer_config.json"
_SPECIAL: Final = "special_tokens_map.json"
_RESPONSE: Final = "response_template"
_LIMITS: Final = Limits()


def chat_template_of(
    source: TextSource,
    *,
    max_seconds: float = _LIMITS.max_seconds,
    max_characters: int = _LIMITS.max_characters,
    max_nbytes: int = _LIMITS.max_nbytes,
) -> "ChatTemplate | None":
    """Return the chat template of a program or a session, None if it has none.

    Args:
        source: the program or session.
        max_seconds: the greatest processor time for parsing the template, and for
            rendering each conversation.
        max_characters: the greatest length of a rendered conversation.
        max_nbytes: the greatest memory of the template's process, on Linux.

    Raises:
        BadSetting: a limit is not a number, or is negative.
        MissingPackage: the package jinja2, which runs templates, is not installed.
        BadChatTemplate: the template, or a file of special tokens, is invalid.
        TemplateLimit: parsing the template exceeds a limit.
        FileChanged, FormatError, FileProblem: a file has changed, is damaged, or cannot
            be read.
        Closed, Forked: the program is closed, or was opened by another process.
    """
    limits = Limits(max_seconds, max_characters, max_nbytes).checked()
    config, for_tools = _read_json(source, _CONFIG), ""
    if _TEMPLATE in source.files:
        file, text = _TEMPLATE, _decoded(_TEMPLATE, source.files[_TEMPLATE])
    else:
        file = _OF_PROCESSOR if _OF_PROCESSOR in source.files else _CONFIG
        found = _read_json(source, file).get("chat_template")
        text, for_tools = _default(file, found), _named(found, "tool_use")
    if not text:
        return None
    special = special_tokens(config, _read_json(source, _SPECIAL))
    renderer = Renderer(file, text, limits)
    tools = Renderer(file, for_tools, limits) if for_tools else None
    return ChatTemplate(file, renderer, special, tools, config.get(_RESPONSE))


@frozen
class ChatTemplate:
    """A parsed template.

    Attributes:
        file: the file of the template, for messages.
        renderer: runs the template.
        special_tokens: the special tokens for the template, such as "bos_token", by
            name.
        for_tools: runs the template called "tool_use", None without one. It is used if
            tools are given.
        response: the description of the model's answers, "response_template", as parsed
            JSON; None without one.
    """

    file: str
    renderer: Renderer
    special_tokens: Mapping[str, str]
    for_tools: Renderer | None = None
    response: object = None

    def render(
        self,
        /,  # a variable may have any name, such as "self"
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Tool] | None = None,
        documents: Sequence[Document] | None = None,
        continue_final_message: bool | str = False,
        **arguments: object,
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: the messages in order.
            add_generation_prompt: whether to add the text that begins the model's
                answer; it is never added with `continue_final_message`.
            tools: the tools that the model may call: JSON schemas, or functions with
                type hints and docstrings.
            documents: texts for the model, mappings with "title" and "text".
            continue_final_message: whether the text ends within the last message, for
                the model to continue it; or the name of the message's field to
                continue, such as "reasoning_content".
            arguments: more variables of the template, such as enable_thinking; they
                replace special tokens of the same name.

        Raises:
            BadSetting: the messages, tools or arguments are not made of texts, or there
                is nothing to continue.
            BadChatTemplate: the template refuses the conversation, or fails.
            TemplateLimit: rendering exceeds a limit.
        """
        clean, schemas = clean_messages(messages), schemas_of(tools)
        renderer, continuing = self.renderer_for(tools), None
        if continue_final_message:
            continuing = Continuing(clean, continue_final_message, renderer.text)
        variables: dict[str, object] = {
            **self.special_tokens,
            **arguments,
            "messages": clean,
            "tools": schemas,
            "documents": checked_documents(documents),
            "add_generation_prompt": add_generation_prompt and continuing is None,
        }
        text = renderer.render(variables)
        return text if continuing is None else continuing.cut(text, self.file)

    def form(self, tools: Sequence[Tool] | None = None) -> Form | None:
        """Return the form of answers: as described, or that of the template's family.

        Returns:
            The form; None if there is no description, and the family is unknown.

        Raises:
            BadChatTemplate: the description is invalid.
        """
        if self.response is not None:
            return described_form(self.response)
        return form_of(self.renderer_for(tools).text)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the template and its special tokens, in hexadecimal."""
        tools = "" if self.for_tools is None else self.for_tools.text
        parts = [self.renderer.text, tools, dict(self.special_tokens)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def renderer_for(self, tools: Sequence[Tool] | None) -> Renderer:
        """Return the renderer of a conversation with tools, or of one with None."""
        has_own = tools is not None and self.for_tools is not None
        return self.for_tools if has_own and self.for_tools else self.renderer

    def end_tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the token that ends the model's answer, () if the files name none."""
        text = self.special_tokens.get("eos_token", "")
        tokens = tokenizer.encode(text, special=False)
        return tuple(tokens) if len(tokens) == 1 else ()


def _read_json(source: TextSource, name: str) -> Mapping[str, object]:
    """Return the object in a JSON file; an empty object if the file is missing.

    Raises:
        BadChatTemplate: the file does not hold a JSON object.
    """
    if name not in source.files:
        return {}
    try:
        found: object = json.loads(source.files[name])
    except (ValueError, RecursionError) as error:
        raise BadChatTemplate(file=name, reason=f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadChatTemplate(file=name, reason="it is not a JSON object")
    return found


def _decoded(name: str, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadChatTemplate(file=name, reason=f"it is not UTF-8: {error}") from error


def _default(file: str, found: object) -> str:
    """Return the default template in a JSON file, "" if there is none.

    Raises:
        BadChatTemplate: the value is a list without a template called "default", or is
            neither a text nor a list.
    """
    match found:
        case None:
            return ""
        case str():
            return found
        case list() if all(isinstance(one, dict) for one in found):
            if text := _named(found, "default"):
                return text
            names = ", ".join(str(one.get("name")) for one in found)
            reason = f'none of its chat templates is called "default": {names}'
            raise BadChatTemplate(file=file, reason=reason)
    reason = "chat_template is neither a text nor a list of named ones"
    raise BadChatTemplate(file=file, reason=reason)


def _named(found: object, wanted: str) -> str:
    """Return the template of a name in a list of templates, "" if there is none."""
    for one in reversed(found if isinstance(found, list) else []):  # the last one wins
        text = one.get("template") if one.get("name") == wanted else None
        if isinstance(text, str):
            return text
    return ""
