"""Chats without jinja2: the texts around messages that `kvc chat --turns` writes."""

import chat_templates
import family_templates
import pytest
from generation_library import Refused
from text_library import Turns

from kvc.runtime.tokenizers import ChatTemplate
from kvc.runtime.tokenizers.chat_turns import turns_of
from kvc.runtime.tokenizers.rendering import Limits, Renderer
from kvc.schema.errors import BadChatTemplate

TEMPLATES = {
    "chatml": chat_templates.CHATML,
    "llama_3": chat_templates.LLAMA_3,
    "gemma": chat_templates.GEMMA,
    "qwen": family_templates.QWEN,
}
SAID = ["Hi", "  spaced \n", "<b>é</b>"]


def template_of(text):
    special = {"bos_token": "<bos>", "eos_token": "<eos>"}
    return ChatTemplate("chat_template.jinja", Renderer("t", text, Limits()), special)


def message(role, content):
    return {"role": role, "content": content}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_texts_are_those_of_the_template(name, system):
    template = template_of(TEMPLATES[name])
    made = turns_of(template, [1, 2])
    turns = Turns(made)
    if system is not None and made["system"] is None:
        with pytest.raises(Refused, match="has no system message"):
            turns.text("Hi", True, system)
        return
    messages = [] if system is None else [message("system", system)]
    text = ""
    for number, said in enumerate(SAID):
        messages.append(message("user", said))
        text += turns.text(said, number == 0, system if number == 0 else None)
        assert text == template.render(messages)
        text += "Hello."
        messages.append(message("assistant", "Hello."))
    assert turns.stop_tokens == [1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content|upper }}{% endfor %}",
        "{{ messages[-1].content }}",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content|replace(' ', '_') }}|{% endfor %}",
    ],
)
def test_a_template_with_other_texts_each_time_is_refused(text):
    with pytest.raises(BadChatTemplate, match="so it takes jinja2"):
        turns_of(template_of(text), [])


GOOD = {
    "first": ["a", "b"],
    "between": "c",
    "system": None,
    "trims": False,
    "stop_tokens": [],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first", ["a"]),
        ("first", [1, 2]),
        ("between", None),
        ("system", "x"),
        ("trims", 1),
        ("stop_tokens", 3),
    ],
)
def test_another_file_is_refused(name, value):
    assert Turns(GOOD).text("x", True) == "axb"
    with pytest.raises(Refused, match="expected the JSON of `kvc chat --turns`"):
        Turns(GOOD | {name: value})
