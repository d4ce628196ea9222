"""Arguments of templates against transformers: tools, reasoning, any name."""

import json
from dataclasses import replace
from enum import Enum
from typing import Any, Literal, Optional

import jinja2
import pytest
from chat_templates import TEMPLATES
from daily import every
from family_templates import FAMILIES, QWEN, THINKING
from small_tokenizers import byte_level
from transformers import PreTrainedTokenizerFast
from transformers.utils import get_json_schema

from kvc.runtime.tokenizers import chat_template_of
from kvc.runtime.tokenizers.function_schemas import schema_of
from kvc.schema.errors import BadChatTemplate, BadSetting

SPECIAL = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


class Source:
    """What a program says and carries."""

    def __init__(self, template):
        self.metadata = {}
        config = {**SPECIAL, "chat_template": template}
        self.files = {"tokenizer_config.json": json.dumps(config).encode()}


def template_of(text):
    return chat_template_of(Source(text))


@pytest.fixture(scope="module")
def peer():
    return PreTrainedTokenizerFast(tokenizer_object=byte_level(), **SPECIAL)


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> str:
    """Tell the weather of a city.

    Args:
        city: The name of the city,
            in English
        days: For how many days
        unit: The unit

    Returns:
        The weather: in words
    """
    return f"{city} {days} {unit}"


CALL = {"name": "weather", "arguments": {"city": "Füssen <é>", "days": 2}}
CALLED = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "They ask.\nI call.",
    "tool_calls": [{"type": "function", "id": "abcdefgh1", "function": CALL}],
}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefgh1"}
RESULT["content"] = "12 degrees"
USER = {"role": "user", "content": "How warm is it?", "name": None}
PICTURE = [{"role": "user", "content": [{"type": "image"}]}]
CONVERSATIONS = {
    "one": [USER],
    "called": [USER, CALLED],
    "told": [USER, CALLED, RESULT],
    "answered": [USER, CALLED, RESULT, {"role": "assistant", "content": "12."}, USER],
    "thought": [
        USER,
        {"role": "assistant", "content": "12.", "thinking": "Hm."},
        USER,
        {"role": "assistant", "content": None, "reasoning": "Hm!", "tool_calls": None},
    ],
}
ARGUMENTS = {
    "none": {},
    "functions": {"tools": [weather]},
    "schemas": {"tools": [get_json_schema(weather)], "enable_thinking": False},
    "documents": {"documents": [{"title": "a", "text": "b"}], "thinking": True},
    "names": {"date_string": "1 May 2026", "bos_token": "<s>", "builtin_tools": ["x"]},
    "builtin": {"builtin_tools": ["weather"], "reasoning_effort": "high"},
}


def same(peer, text, messages, **arguments):
    """Check that the text, or the refusal, is that of transformers."""
    options = {"chat_template": text, "tokenize": False, **arguments}
    try:
        expected = peer.apply_chat_template(messages, **options)
    except (jinja2.TemplateError, TypeError):
        with pytest.raises(BadChatTemplate):
            template_of(text).render(messages, **arguments)
        return None
    assert template_of(text).render(messages, **arguments) == expected
    return expected


@every(6, "family", "conversation", "arguments", "prompt")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("prompt", [True, False])
def test_texts_are_those_of_transformers(peer, family, conversation, arguments, prompt):
    options = {**ARGUMENTS[arguments], "add_generation_prompt": prompt}
    same(peer, FAMILIES[family], CONVERSATIONS[conversation], **options)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_without_tools_take_them(peer, name):
    same(peer, TEMPLATES[name], [USER], tools=[weather], add_generation_prompt=True)


def test_a_template_for_tools_is_used_where_there_are_tools():
    named = [
        {"name": "default", "template": "talk"},
        {"name": "tool_use", "template": "{{ tools | length }}"},
    ]
    template = template_of(named)
    assert template.render([USER]) == "talk"
    assert template.render([USER], tools=[weather]) == "1"
    assert template.render([USER], tools=[]) == "0"  # as in transformers


@pytest.mark.parametrize("field", [True, "reasoning_content", "thinking"])
@pytest.mark.parametrize("content", ["It is", " It is  ", [{"text": "It"}, {}]])
def test_a_message_that_goes_on_ends_as_in_transformers(peer, field, content):
    last = {"role": "assistant", "content": content, "thinking": "Hm. "}
    text = (
        "{% for m in messages %}{{ m.content if m.content is string else "
        "m.content[0].text }}|{{ m.reasoning_content | trim }}|{% endfor %}"
    )
    options = {"continue_final_message": field, "add_generation_prompt": False}
    expected = same(peer, text, [USER, last], **options)
    assert not expected.endswith("|")


def test_what_cannot_go_on_is_refused():
    template = template_of(THINKING)
    with pytest.raises(BadSetting, match="continue_final_message: expected a last"):
        template.render([], continue_final_message=True)
    with pytest.raises(BadSetting, match="'nothing', which templates read"):
        template.render([USER], continue_final_message="nothing")
    with pytest.raises(BadSetting, match="that has a text"):
        template.render(PICTURE, continue_final_message=True)
    dropped = [{"role": "assistant", "content": "<think>a</think>b"}]
    with pytest.raises(BadChatTemplate, match="changes the last message"):
        template.render(dropped, continue_final_message=True)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tools", "weather", "a list of JSON schemas"),
        ("tools", [3], "a list of JSON schemas"),
        ("tools", [len], "a list of JSON schemas"),
        ("documents", ["text"], "a list of mappings"),
        ("documents", 3, "a list of mappings"),
        ("today", object(), "texts, lists and mappings"),
        ("tools", [{"name": {1, 2}}], "texts, lists and mappings"),
    ],
)
def test_what_templates_cannot_have_is_refused(name, value, expected):
    with pytest.raises(BadSetting, match=f"{name}: expected {expected}"):
        template_of(QWEN).render([USER], **{name: value})


@pytest.mark.parametrize("name", ["self", "messages_", "args", "class", "a b", ""])
def test_a_variable_may_have_any_name(name):
    text = "{{ a }}x"
    assert template_of(text).render([USER], a="y", **{name: "z"}) == "yx"


class Color(Enum):
    RED = "red"
    TWO = 2


def every_hint(
    a: int,
    b: list[float],
    c: dict[str, list[bool]],
    d: tuple[int, str],
    e: Optional[str],  # noqa: UP045  written both ways by users
    f: int | str,
    g: list[int] | dict,
    h: Color,
    i: Literal[1, "x", None],
    j: Any,
    k: list | None = None,
    *more: str,
) -> dict[str, object]:
    """Have an argument of every type.

    More words.

    Args:
        a: One (choices: [1, " two "])
        b: Two
        c: Three: of three
            lines, with a colon:
            this one
        d: Four
        e: Five
        f: Six

        g: Seven
        h: Eight
        i: Nine
        j: Ten
        k: Eleven
        more: Twelve

    Returns:
        Nothing: at all

    Raises:
        ValueError: never
    """


class Having:
    def method(self, x: int) -> Color:
        """Have a receiver.

        Args:
            x: A number
        """


def short(x: "int"):
    """Do it.

    Args:
        x: A number"""


@pytest.mark.parametrize("tool", [weather, every_hint, Having().method, short])
def test_functions_are_described_as_by_transformers(tool):
    assert schema_of(tool) == get_json_schema(tool)


def untold(x: int):
    """Do it."""


def silent(x: int): ...


def unhinted(x):
    """Do it.

    Args:
        x: A number
    """


def wrong(x: "Nowhere"):  # noqa: F821  not there on purpose
    """Do it.

    Args:
        x: A number
    """


def halved(x: "int +"):  # noqa: F722  no expression on purpose
    """Do it.

    Args:
        x: A number
    """


def missing(x: "json.Nothing"):
    """Do it.

    Args:
        x: A number
    """


def classy(x: Having):
    """Do it.

    Args:
        x: A thing
    """


def choosy(x: int):
    """Do it.

    Args:
        x: A thing (choices: [1,)
    """


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (untold, "a description of x"),
        (silent, "a docstring"),
        (unhinted, "a type hint of x"),
        (wrong, "type hints that can be read"),
        (halved, "type hints that can be read"),
        (missing, "type hints that can be read"),
        (classy, "type hints of JSON's types"),
        (choosy, "a list in JSON after choices:"),
    ],
)
def test_functions_that_say_too_little_are_refused(tool, expected):
    with pytest.raises(BadSetting, match=f"tools: expected {expected}.*JSON schema"):
        template_of(QWEN).render([USER], tools=[tool])


def test_a_template_is_not_changed_by_rendering():
    template = template_of(QWEN)
    message = {"role": "assistant", "content": "a", "thinking": "b"}
    given = [USER, dict(message)]
    template.render(given, continue_final_message=True, tools=[weather])
    assert given == [USER, message]
    assert replace(template).render([USER]) == template.render([USER])
