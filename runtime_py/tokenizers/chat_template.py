"""`ChatTemplate`: render a conversation as text in the form the model was trained on.

In: the files of a bundle: chat_template.jinja, or the entry "chat_template" of
chat_template.json or tokenizer_config.json; the latter also names the special tokens.
Out: the text that `apply_chat_template` of transformers returns. A template is code of
the model's authors. It runs in the sandbox of jinja2, in a subprocess (`rendering.py`),
and has access only to strings.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from kvc.runtime.tokenizers.interface import TextSource, Tokenizer
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.schema.errors import BadChatTemplate, BadSetting
from kvc.schema.frozen import frozen

# Named special tokens, such as "bos_token" and "eos_token"


_STANDARD: Final = frozenset(
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_NAMED: Final = "model_specific_special_tokens"
_EXTRA: Final = "extra_special_tokens"  # a list, or an object with names
_OLD_EXTRA: Final = "additional_special_tokens"
_ADDED: Final = "added_tokens_decoder"

_Config = Mapping[str, object]


def special_tokens(config: _Config, special_map: _Config) -> dict[str, str]:
    """Return the texts of all special tokens that have names.

    Args:
        config: the content of tokenizer_config.json.
        special_map: the content of special_tokens_map.json, which older models have; it
            is used if the config has no entry "added_tokens_decoder".
    """
    found = dict(config)
    if not found.get(_EXTRA):
        found[_EXTRA] = found.get(_OLD_EXTRA)
    named = _own_names(found) | _named(found.pop(_EXTRA))
    named = named or _named(found.get(_NAMED))
    if _ADDED not in config:
        found |= special_map
        named |= _named(found.get(_EXTRA))
    standard = {key: found[key] for key in sorted(_STANDARD & found.keys())}
    return _texts(standard) | _own_names(found) | named


def _own_names(config: _Config) -> dict[str, str]:
    """Return the special tokens that the model itself has named: name -> text."""
    return {
        key: text
        for key, text in _texts(config).items()
        if key.endswith("_token") and key not in _STANDARD
    }


def _named(found: object) -> dict[str, str]:
    """Return the texts of an object by name; empty for a list, which has no names."""
    return _texts(found) if isinstance(found, dict) else {}


def _texts(tokens: _Config) -> dict[str, str]:
    texts = {}
    for name, value in tokens.items():
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            texts[name] = text
    return texts


# Rendering


# "role": "system", "user" or "assistant"; "content": a text, or a list of parts.
Message = Mapping[str, object]

_TEMPLATE: Final = "chat_template.jinja"
_OF_PROCESSOR: Final = "chat_template.json"
_CONFIG: Final = "tokenizer_config.json"
_SPECIAL: Final = "special_tokens_map.json"
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
    config = _read_json(source, _CONFIG)
    if _TEMPLATE in source.files:
        file, text = _TEMPLATE, _decoded(_TEMPLATE, source.files[_TEMPLATE])
    else:
        file = _OF_PROCESSOR if _OF_PROCESSOR in source.files else _CONFIG
        text = _default(file, _read_json(source, file).get("chat_template"))
    if not text:
        return None
    special = special_tokens(config, _read_json(source, _SPECIAL))
    return ChatTemplate(file, Renderer(file, text, limits), special)


@frozen
class ChatTemplate:
    """A parsed template.

    Attributes:
        file: the file of the template, for messages.
        renderer: runs the template.
        special_tokens: the special tokens for the template, such as "bos_token", by
            name.
    """

    file: str
    renderer: Renderer
    special_tokens: Mapping[str, str]

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: the messages in order.
            add_generation_prompt: whether to add the text that begins the model's
                answer.

        Raises:
            BadSetting: the messages are not made of texts.
            BadChatTemplate: the template refuses the conversation, or fails.
            TemplateLimit: rendering exceeds a limit.
        """
        copies = told_of(messages)
        variables: dict[str, object] = {
            **self.special_tokens,
            "messages": copies,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return self.renderer.render(variables)

    def end_tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Return the token that ends the model's answer, () if the files name none."""
        text = self.special_tokens.get("eos_token", "")
        tokens = tokenizer.encode(text, special=False)
        return tuple(tokens) if len(tokens) == 1 else ()


def told_of(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return copies of messages.

    Raises:
        BadSetting: a message is not a mapping.
    """
    try:
        return [dict(message) for message in messages]
    except (TypeError, ValueError) as error:
        expected = 'mappings with the texts "role" and "content"'
        found = repr(messages)[:80]
        raise BadSetting(name="messages", expected=expected, found=found) from error


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
            named = [(one.get("name"), one.get("template")) for one in found]
            for name, text in reversed(named):  # the last one wins, as in a mapping
                if name == "default" and isinstance(text, str):
                    return text
            names = ", ".join(str(name) for name, _ in named)
            reason = f'none of its chat templates is called "default": {names}'
            raise BadChatTemplate(file=file, reason=reason)
    reason = "chat_template is neither a text nor a list of named ones"
    raise BadChatTemplate(file=file, reason=reason)
