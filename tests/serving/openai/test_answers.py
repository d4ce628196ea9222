"""Answers as objects and as chunks: the same content, however updates are cut."""

import json

import pytest

from kvc.runtime.generation import TokenLogprob
from kvc.runtime.tokenizers import Bytes
from kvc.schema.errors import (
    BadSetting,
    Closed,
    FileChanged,
    KeyRefused,
    Overloaded,
    UnknownModel,
)
from kvc.serving.http.responses import JsonAnswer
from kvc.serving.models.replies import Forced, ForcedCalls
from kvc.serving.models.token_texts import TokenTexts
from kvc.serving.openai.chat_answers import ChatChoice
from kvc.serving.openai.chunks import Chunks, event
from kvc.serving.openai.completion_answers import TextChoice
from kvc.serving.openai.errors import told
from kvc.serving.openai.usage import Usage
from kvc.serving.scheduling import Update

CALLS = '[{"name": "add", "arguments": {"a": 1}}, {"name": "sub", "arguments": {}}]'


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_forced_calls_are_read_however_they_are_cut(size):
    choice = ChatChoice(ForcedCalls(), None)
    for at in range(0, len(CALLS), size):
        assert choice.take(Update(CALLS[at : at + size])).calls == ()
    delta = choice.take(Update(ending="stop"))
    names = [call["function"]["name"] for call in delta.calls]
    assert names == ["add", "sub"]
    assert [call["index"] for call in delta.calls] == [0, 1]
    assert delta.calls[0]["function"]["arguments"] == '{"a": 1}'
    assert delta.finish == "tool_calls"


def test_calls_that_were_cut_off_are_content():
    choice = ChatChoice(ForcedCalls(), None)
    choice.keep(Update(CALLS[:20]))
    choice.keep(Update(ending="max_tokens"))
    found = choice.choice(0)
    assert found["message"]["content"] == CALLS[:20]
    assert "tool_calls" not in found["message"]
    assert found["finish_reason"] == "length"


@pytest.mark.parametrize(
    "told", ['{"name": "f", "arguments": {"a": "\\ud800"}}', "[" * 100_000]
)
def test_calls_that_python_cannot_spell_are_told(told):
    choice = ChatChoice(ForcedCalls(), None)
    choice.keep(Update(told))
    choice.keep(Update(ending="stop"))
    message = json.loads(JsonAnswer(choice.choice(0)).body)["message"]
    if told.startswith("{"):
        arguments = message["tool_calls"][0]["function"]["arguments"]
        assert json.loads(arguments) == {"a": "\ud800"}
    else:
        assert message["content"] == told


def test_the_schema_of_forced_calls_names_the_tools():
    one = Forced({"add": {"type": "object"}}, several=False).schema
    assert one["properties"]["name"] == {"const": "add"}
    several = Forced({"add": {}, "sub": {}}).schema
    assert several["type"] == "array"
    assert len(several["items"]["anyOf"]) == 2


def test_chunks_are_json_whatever_the_text():
    chunks = Chunks("text_completion", 'i"d', 7, "mödel")
    for text in ('a"b\\c\n\r\u2028', "\x00é👍", "\ud83d", "data: [DONE]\n\n"):
        made = chunks.text(0, text, None, None)
        assert made.startswith("data: ")
        assert made.endswith("\n\n")
        assert "\n" not in made[:-2]
        found = json.loads(made[6:])
        assert found["choices"][0]["text"] == text
        assert (found["id"], found["model"]) == ('i"d', "mödel")
    assert json.loads(event({"error": "\n"})[6:]) == {"error": "\n"}


def test_usage_is_told_in_chunks_that_ask_for_it():
    chunks, usage = Chunks("chat.completion.chunk", "i", 7, "m"), Usage(5)
    chunks.with_usage()
    assert json.loads(chunks.role(1)[6:])["usage"] is None
    usage.add(0, Update("ab", (1, 2), reused=9))
    usage.add(1, Update("ab", (1,), reused=5))
    found = json.loads(chunks.usage(usage)[6:])
    assert found["choices"] == []
    assert found["usage"]["completion_tokens"] == 3
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}


def test_log_probabilities_have_tokens_bytes_and_offsets():
    texts = TokenTexts(Bytes())
    logs = (TokenLogprob(97, -0.5, ((97, -0.5), (195, -2.0))), TokenLogprob(98, -9.0))
    choice = TextChoice("xyz", texts)
    choice.keep(Update("ab", (97, 98), logs, "stop"))
    found = choice.choice(0)
    assert found["text"] == "xyzab"
    assert found["logprobs"]["text_offset"] == [3, 4]
    assert found["logprobs"]["tokens"] == ["a", "b"]
    assert set(found["logprobs"]["top_logprobs"][0]) == {"a", "bytes:\\xc3"}
    assert texts.raw(97) == b"a"
    assert texts.raw(195) == b"\xc3"  # a part of a character


def test_offsets_are_of_the_text_whatever_stands_in_several_tokens():
    raw = "aé🎉b".encode()
    logs = tuple(TokenLogprob(byte, -0.5) for byte in raw)
    choice = TextChoice("", TokenTexts(Bytes()))
    for number, log in enumerate(logs):
        text = {0: "a", 2: "é", 6: "🎉", 7: "b"}.get(number, "")
        ending = "max_tokens" if number == len(raw) - 1 else None
        choice.keep(Update(text, (log.token,), (log,), ending))
    found = choice.choice(0)
    assert found["text"] == "aé🎉b"
    assert found["logprobs"]["text_offset"] == [0, 1, 1, 2, 2, 2, 2, 3]
    assert found["logprobs"]["tokens"][1:3] == ["bytes:\\xc3", "bytes:\\xa9"]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (KeyRefused(), 401, "authentication_error", "invalid_api_key"),
        (
            UnknownModel(name="a", known=("b",)),
            404,
            "not_found_error",
            "model_not_found",
        ),
        (
            Overloaded(waiting=1, seconds=2.4),
            429,
            "rate_limit_error",
            "rate_limit_exceeded",
        ),
        (
            BadSetting(name="n", expected="e", found="f"),
            400,
            "invalid_request_error",
            "BadSetting",
        ),
        (Closed(kind="server"), 503, "server_error", "Closed"),
        (FileChanged(path="/home/me/a.kvc"), 503, "server_error", "FileChanged"),
    ],
)
def test_errors_have_the_form_of_openai(error, status, kind, code):
    found = told(error, ("/home/me/a.kvc",))
    assert found.status == status
    inner = found.body["error"]
    assert (inner["type"], inner["code"]) == (kind, code)
    assert "/home" not in inner["message"]
    assert (found.retry == 2) == (status == 429)
