"""Bundles as models: prompts of chats, settings, and what is refused."""

import threading

import pytest
import torch
from adding_model import write_chat

from kvc.compiler import Method, compile_program
from kvc.runtime import generate, load
from kvc.runtime.tokenizers import chat_template_of
from kvc.schema.errors import BadSetting, UnknownModel, UnknownName, WrongModel
from kvc.serving.models.catalog import Catalog
from kvc.serving.models.chat_prompts import Chat
from kvc.serving.models.opening import open_model
from kvc.serving.models.replies import FreeReply
from kvc.serving.scheduling import Limits, Request

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "add"}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model of bytes whose template is of no family and tells of no tools."""
    path = write_chat(tmp_path_factory.mktemp("plain") / "plain.kvc", max_new_tokens=7)
    with open_model("plain", load(path), Limits()) as model:
        yield model


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A model without a chat template."""
    path = tmp_path_factory.mktemp("bare") / "bare.kvc"
    with open_model("bare", load(write_chat(path, template=None)), Limits()) as model:
        yield model


@pytest.fixture(scope="module")
def chat(chat_bundle):
    with open_model("chat", load(chat_bundle), Limits()) as model:
        yield model


def test_a_prompt_is_what_the_template_renders(chat):
    template = chat_template_of(chat.program)
    made = chat.prompts.chat(Chat(HELLO))
    text = template.render(HELLO)
    assert made.turn.text == text
    assert list(made.turn.tokens) == chat.tokenizer.encode(text, special=False)
    assert "name" in chat.prompts.chat(Chat(HELLO, tools=[TOOL])).turn.text


def test_texts_in_parts_are_joined_and_developers_are_systems(chat):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "user", "content": ""},
    ]
    text = chat.prompts.chat(Chat(messages)).turn.text
    assert "<|im_start|>system\nBe brief.<|im_end|>" in text
    assert "<|im_start|>user\na\nb<|im_end|>" in text


def test_all_texts_that_a_template_may_write_count():
    least = Chat([{"role": "user", "content": "a"}]).characters
    parts = [{"type": "text", "text": "x" * 1000}]
    call = {"function": {"name": "a", "arguments": {"x" * 1000: 1}}}
    for more in ({"content": parts}, {"tool_calls": [call]}, {"name": "x" * 1000}):
        assert Chat([{"role": "user", "content": "a", **more}]).characters > 1000
    whole = Chat([{"role": "user", "content": "a"}], tools=[{"a": ["x" * 1000]}])
    assert whole.characters == least + 1001


def test_the_end_of_a_turn_stops_chats_alone(chat, plain):
    assert 1 in chat.settings({}, in_chat=True).stop_tokens
    assert plain.settings({}, in_chat=True).stop_tokens == (ord("!"),)
    assert plain.settings({}, in_chat=False).stop_tokens == ()
    own = chat.settings({"stop_tokens": (7,)}, in_chat=True)
    assert own.stop_tokens == (7, 1)


def test_settings_without_effect_warn_nobody(chat):
    schema = {
        "type": "object",
        "requird": [],
    }  # the misspelt keyword would be warned of
    assert chat.settings({"json_schema": schema}, in_chat=True).constraint is not None


def test_tools_of_an_unknown_family_are_refused(plain):
    with pytest.raises(BadSetting, match="does not tell the model of tools"):
        plain.prompts.chat(Chat(HELLO, tools=[TOOL]))


def test_a_model_without_a_template_takes_prompts(bare):
    with pytest.raises(BadSetting, match="/v1/completions"):
        bare.prompts.chat(Chat(HELLO))
    assert bare.decode(bare.encode("é")) == "é"


def test_unknown_effort_is_refused(chat):
    with pytest.raises(BadSetting, match="reads no reasoning_effort"):
        chat.prompts.chat(Chat(HELLO, effort="high"))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_reasoning_and_calls_are_read_however_they_are_cut(chat, size):
    text = (
        '<think>\nwell\n</think>\n\nyes<tool_call>\n{"name": "add", "arguments": '
        '{"a": 1}}\n</tool_call>'
    )
    reply = FreeReply(chat.prompts.chat(Chat(HELLO, tools=[TOOL])))
    pieces = []
    for at in range(0, len(text), size):
        pieces += reply.push(text[at : at + size], [1])
    pieces += reply.finish()
    found = dict.fromkeys(("content", "reasoning_content", "tool_calls"), "")
    for piece in pieces:
        found[piece.part] += piece
    assert found["content"] == "yes"
    assert found["reasoning_content"] == "well"
    (call,) = reply.calls
    assert (call.name, call.arguments) == ("add", '{"a": 1}')


def test_a_model_of_bytes_answers(bare, chat):
    with bare.program.session() as session:
        wanted = "".join(generate(session, "Hello", max_tokens=5, temperature=0).text())
    box, ended = [], threading.Event()

    def listen(update):
        box.append(update.text)
        if update.ending is not None:
            ended.set()

    settings = bare.settings({"max_tokens": 5, "temperature": 0}, in_chat=False)
    bare.submit(Request(bare.encode("Hello"), settings, bare.tokenizer), listen)
    assert ended.wait(20)
    assert "".join(box) == wanted
    for model in (bare, chat):
        model.warm_up()


def test_models_are_found_by_name(chat, plain, embedding_bundle):
    with open_model("words", load(embedding_bundle), Limits()) as words:
        catalog = Catalog([chat, words])
        assert catalog.ids == ("chat", "words")
        for name in (None, "", "Chat", "chat:poet"):
            with pytest.raises(UnknownModel, match="models: chat, words"):
                catalog.find(name)
        with pytest.raises(WrongModel, match="'words' embeds texts; it cannot sing"):
            catalog.find("words").text_model("sing")
        with pytest.raises(WrongModel, match="cannot embed texts"):
            catalog.find("chat").embedding_model()
    assert Catalog([plain]).find(None).id == "plain"


class Twice(torch.nn.Module):
    def forward(self, x):
        return x * 2


@pytest.mark.parametrize(
    ("metadata", "kind", "said"),
    [
        ({}, UnknownName, "role"),
        ({"task": "classify"}, BadSetting, "one for --task classify"),
    ],
)
def test_bundles_of_other_kinds_are_refused(tmp_path, metadata, kind, said):
    methods = [Method("forward", args=(torch.zeros(2),))]
    bundle = compile_program(Twice(), methods, "fp32", metadata=metadata)
    bundle.save(tmp_path / "twice.kvc")
    with load(tmp_path / "twice.kvc") as program, pytest.raises(kind, match=said):
        open_model("other", program, Limits())
