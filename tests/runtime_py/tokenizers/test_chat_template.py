"""Chat templates against transformers, and what is wrong with them."""

import json

import jinja2
import pytest
from chat_templates import CHATML, GEMMA, TEMPLATES
from daily import every
from small_tokenizers import byte_level
from transformers import PreTrainedTokenizerFast

from kvc.runtime.tokenizers import chat_template_of
from kvc.runtime.tokenizers.library import JsonTokenizer
from kvc.schema.errors import BadChatTemplate, BadSetting, MissingPackage

USER = {"role": "user", "content": " What is a cache? <é> "}
ASSISTANT = {"role": "assistant", "content": 'It holds "keys".\n'}
MORE = {"role": "user", "content": "And 日本語?"}
SYSTEM = {"role": "system", "content": "Be brief."}
CONVERSATIONS = {
    "one": [USER],
    "three": [USER, ASSISTANT, MORE],
    "system": [SYSTEM, USER, ASSISTANT, MORE],
}
SPECIAL = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


class Source:
    """What a program says and carries."""

    def __init__(self, **files):
        self.metadata = {}
        names = {"config": "tokenizer_config.json", "jinja": "chat_template.jinja"}
        names |= {"special": "special_tokens_map.json", "json": "chat_template.json"}
        self.files = {
            names[key]: value.encode() if isinstance(value, str) else value
            for key, value in files.items()
        }


def template_of(text, special=SPECIAL):
    return chat_template_of(Source(jinja=text, config=json.dumps(special)))


@pytest.fixture(scope="module")
def peer():
    """The tokenizer of transformers around the same tokenizer.json."""
    library = byte_level()
    return PreTrainedTokenizerFast(tokenizer_object=library, **SPECIAL)


@every(2, "prompt", "conversation", "name")
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_text_and_tokens_are_those_of_transformers(peer, name, conversation, prompt):
    messages = CONVERSATIONS[conversation]
    options = {"chat_template": TEMPLATES[name], "add_generation_prompt": prompt}
    template = template_of(TEMPLATES[name])
    if name == "gemma" and conversation == "system":
        with pytest.raises(jinja2.TemplateError):
            peer.apply_chat_template(messages, **options)
        with pytest.raises(BadChatTemplate, match="System role not supported"):
            template.render(messages, prompt)
        return
    text = template.render(messages, prompt)
    assert text == peer.apply_chat_template(messages, tokenize=False, **options)
    assert "cache" in text
    tokens = JsonTokenizer(byte_level().to_str().encode()).encode(text, special=False)
    assert tokens == peer.apply_chat_template(messages, return_dict=False, **options)


def test_a_processors_template_comes_before_that_of_its_tokenizer():
    told = {"json": json.dumps({"chat_template": "{{ bos_token }}it"})}
    told["config"] = json.dumps({**SPECIAL, "chat_template": "another"})
    assert chat_template_of(Source(**told)).render([]) == "<|begin|>it"
    assert chat_template_of(Source(**told, jinja="first")).render([]) == "first"
    with pytest.raises(BadChatTemplate, match=r"chat_template\.json"):
        chat_template_of(Source(json=json.dumps({"chat_template": 5})))


@pytest.mark.parametrize("messages", [["Hello"], [1], None, 1])
def test_messages_that_are_no_mappings_are_refused(messages):
    with pytest.raises(BadSetting, match="messages: expected mappings"):
        template_of("text").render(messages)


def test_the_time_is_that_of_this_place():
    now = template_of("{{ strftime_now('%Y') }}").render([USER])
    assert int(now) >= 2026


def test_there_may_be_no_template():
    assert chat_template_of(Source()) is None
    assert chat_template_of(Source(config="{}")) is None
    assert chat_template_of(Source(config='{"chat_template": null}')) is None


def test_the_template_may_be_in_the_config():
    config = json.dumps(SPECIAL | {"chat_template": CHATML})
    inside = chat_template_of(Source(config=config))
    assert inside.render([USER]) == template_of(CHATML).render([USER])


def test_a_file_of_its_own_comes_before_the_config():
    config = json.dumps({"chat_template": "config"})
    assert chat_template_of(Source(config=config, jinja="own")).render([USER]) == "own"


def test_of_several_templates_the_default_is_taken():
    named = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "talk"},
    ]
    config = json.dumps({"chat_template": named})
    assert chat_template_of(Source(config=config)).render([USER]) == "talk"
    config = json.dumps({"chat_template": named[:1]})
    with pytest.raises(BadChatTemplate, match=r'called "default": tool_use'):
        chat_template_of(Source(config=config))
    config = json.dumps({"chat_template": [{"name": ["default"], "template": "x"}]})
    with pytest.raises(BadChatTemplate, match=r'called "default": \[\'default\'\]'):
        chat_template_of(Source(config=config))


def test_special_tokens_come_from_both_files_as_text_or_object():
    special = json.dumps({"bos_token": {"content": "<s>"}})
    config = json.dumps({"eos_token": {"content": "</s>"}, "pad_token": None})
    text = "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}"
    source = Source(jinja=text, special=special, config=config)
    assert chat_template_of(source).render([USER]) == "<s></s>False"


def test_the_token_that_ends_an_answer_is_known():
    tokenizer = JsonTokenizer(byte_level().to_str().encode())
    assert template_of(CHATML).end_tokens(tokenizer) == (1,)
    assert template_of(CHATML, {}).end_tokens(tokenizer) == ()
    assert template_of(CHATML, {"eos_token": "no token"}).end_tokens(tokenizer) == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{% if %}", "Expected an expression"),
        ("{% generation %}", "endgeneration"),
        ("{{ " + "(" * 5000, "recursion"),
    ],
)
def test_a_template_with_a_mistake_is_refused(text, reason):
    with pytest.raises(BadChatTemplate, match=reason) as caught:
        template_of(text)
    assert str(caught.value).startswith("the chat template chat_template.jinja: ")


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages.append('x') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ '{0.__class__.__mro__.x}'.format(messages) }}",
        "{{ range(10000000) | list }}",
        "{{ 1 // 0 }}",
        "{{ nothing.more }}",
        "{{ messages | nosuchfilter }}",
        "{% include 'chat_template.jinja' %}",
        "{{ [messages] * 10 ** 20 }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{{ dict.mro() }}",
    ],
)
def test_a_template_that_does_what_it_may_not_fails(text):
    with pytest.raises(BadChatTemplate):
        template_of(text).render([USER])


def test_a_template_cannot_change_the_conversation():
    messages = [dict(USER)]
    with pytest.raises(BadChatTemplate):
        template_of("{{ messages[0].update({'content': 'x'}) }}").render(messages)
    assert messages == [USER]


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\xff", b"[" * 99999])
def test_a_config_that_is_no_object_is_refused(raw):
    with pytest.raises(BadChatTemplate, match=r"tokenizer_config\.json: it is not"):
        chat_template_of(Source(config=raw))


@pytest.mark.parametrize("found", [3, ["text"], {"default": "x"}])
def test_a_template_of_another_kind_is_refused(found):
    with pytest.raises(BadChatTemplate, match="neither a text nor a list"):
        chat_template_of(Source(config=json.dumps({"chat_template": found})))


def test_a_template_that_is_not_utf_8_is_refused():
    with pytest.raises(BadChatTemplate, match="not UTF-8"):
        chat_template_of(Source(jinja=b"\xff"))


@pytest.fixture
def another_jinja2(tmp_path, monkeypatch):
    """Have a package of another content found first."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(text):
        (tmp_path / "jinja2.py").write_text(text)

    return put


def test_without_the_package_the_message_says_how_to_get_it(another_jinja2):
    another_jinja2("raise ImportError('No module named jinja2')")
    match = r"jinja2: No module named jinja2; get it with `pip install 'jinja2>=3"
    with pytest.raises(MissingPackage, match=match):
        template_of(GEMMA)


def test_a_version_with_a_leaking_sandbox_is_refused(another_jinja2):
    another_jinja2("__version__ = '3.1.5'")
    with pytest.raises(MissingPackage, match=r"version 3\.1\.5 is installed, 3\.1\.6"):
        template_of(GEMMA)
