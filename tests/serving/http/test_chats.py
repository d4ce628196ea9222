"""Chats and completions through the package openai: answers, streams and settings."""

import json

import openai
import pytest

from kvc.runtime import Conversation, generate, load
from kvc.runtime.tokenizers import chat_template_of, tokenizer_of

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"model": "chat", "temperature": 0}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
CALL = r'<tool_call>\n\{"name": "add", "arguments": \{"a": 1\}\}\n</tool_call>'


@pytest.fixture(scope="module")
def program(chat_bundle):
    with load(chat_bundle) as opened:
        yield opened


def expected(program, text, **settings):
    """What `generate` makes of a text."""
    with program.session(batch=1) as session:
        return "".join(generate(session, text, temperature=0, **settings).text())


def talk(program, **settings):
    """What a conversation of kvc answers to HELLO, and its generation."""
    tokenizer, template = tokenizer_of(program), chat_template_of(program)
    with program.session(batch=1) as session:
        given = {"special_tokens": "text", "temperature": 0, **settings}
        conversation = Conversation(session, tokenizer, template, **given)
        return "".join(conversation.say("Hello")), conversation.answer


def joined(stream, field="content"):
    deltas = (chunk.choices[0].delta for chunk in stream if chunk.choices)
    return "".join(getattr(delta, field, None) or "" for delta in deltas)


def test_a_greedy_answer_is_that_of_generate(client, program):
    wanted, _ = talk(program, max_tokens=12)
    made = client.chat.completions.create(messages=HELLO, max_tokens=12, **GREEDY)
    assert made.choices[0].message.content == wanted
    assert made.choices[0].message.role == "assistant"
    assert made.object == "chat.completion"
    assert made.model == "chat"
    assert made.usage.total_tokens == made.usage.prompt_tokens + 12
    assert made.usage.prompt_tokens_details.cached_tokens <= made.usage.prompt_tokens
    assert made.choices[0].finish_reason == "length"


def test_a_stream_is_the_same_answer_piece_by_piece(client):
    given = {"messages": HELLO, "max_completion_tokens": 12, **GREEDY}
    whole = client.chat.completions.create(**given)
    chunks = list(
        client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **given
        )
    )
    assert joined(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [one.usage for one in chunks[:-1]] == [None] * len(chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1


def test_each_chunk_tells_the_tokens_until_then(client):
    each = {"include_usage": True, "continuous_usage_stats": True}
    given = {"messages": HELLO, "max_tokens": 12, "stream_options": each, **GREEDY}
    chunks = list(client.chat.completions.create(stream=True, **given))
    said = [one for one in chunks if one.choices and one.choices[0].delta.content]
    counts = [one.usage.completion_tokens for one in said]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-2].usage == chunks[-1].usage


def test_a_completion_is_that_of_generate(client, program):
    given = {"prompt": "Once upon", "max_tokens": 10, **GREEDY}
    wanted = expected(program, "Once upon", max_tokens=10)
    assert client.completions.create(**given).choices[0].text == wanted
    stream = client.completions.create(stream=True, **given)
    assert "".join(chunk.choices[0].text for chunk in stream) == wanted
    echoed = client.completions.create(echo=True, **given)
    assert echoed.choices[0].text == "Once upon" + wanted


def test_prompts_may_be_several_or_tokens(client, program):
    texts = ["Once", "upon a"]
    wanted = [expected(program, text, max_tokens=4) for text in texts]
    tokens = [list(map(int, program_tokens(program, text))) for text in texts]
    for prompt in (texts, tokens):
        made = client.completions.create(prompt=prompt, max_tokens=4, **GREEDY)
        assert [one.text for one in made.choices] == wanted
        assert [one.index for one in made.choices] == [0, 1]
    made = client.completions.create(prompt=tokens[0], max_tokens=4, **GREEDY)
    assert made.choices[0].text == wanted[0]


def program_tokens(program, text):
    return tokenizer_of(program).encode(text)


def test_several_answers_differ_and_a_seed_repeats_them(client):
    given = {"model": "chat", "messages": HELLO, "temperature": 1.5, "max_tokens": 8}

    def texts(seed):
        made = client.chat.completions.create(n=3, seed=seed, **given)
        return [one.message.content for one in made.choices]

    first = texts(7)
    assert len(set(first)) == 3
    assert texts(7) == first
    assert texts(8) != first
    chunks = client.chat.completions.create(n=3, seed=7, stream=True, **given)
    streamed = ["", "", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == first


def test_stop_strings_end_an_answer(client):
    given = {"messages": HELLO, "max_tokens": 12, **GREEDY}
    whole = client.chat.completions.create(**given).choices[0].message.content
    cut = client.chat.completions.create(stop=[whole[5:7]], **given).choices[0]
    assert cut.message.content == whole[: whole.index(whole[5:7])]
    assert cut.finish_reason == "stop"


def test_log_probabilities_are_those_of_generate(client, program):
    given = {"messages": HELLO, "max_tokens": 5, "logprobs": True, **GREEDY}
    made = client.chat.completions.create(top_logprobs=3, **given).choices[0]
    _, answer = talk(program, max_tokens=5, logprobs=3)
    logs = made.logprobs.content
    assert [one.logprob for one in logs] == [one.logprob for one in answer.logprobs]
    assert [len(one.top_logprobs) for one in logs] == [3] * 5
    assert "".join(one.token for one in logs) == made.message.content
    streamed = [
        one
        for chunk in client.chat.completions.create(stream=True, **given)
        for choice in chunk.choices
        if choice.logprobs
        for one in choice.logprobs.content
    ]
    assert [one.logprob for one in streamed] == [one.logprob for one in logs]


def test_log_probabilities_of_completions_have_offsets(client):
    given = {"prompt": "Once", "max_tokens": 4, "logprobs": 2, **GREEDY}
    logs = client.completions.create(**given).choices[0].logprobs
    assert logs.text_offset[0] == 0
    assert [len(one) for one in logs.top_logprobs] == [2] * 4
    ends = [a + len(t) for a, t in zip(logs.text_offset, logs.tokens, strict=True)]
    assert ends[:-1] == logs.text_offset[1:]


def test_a_bias_forbids_a_token(client, program):
    given = {"prompt": "Once", "max_tokens": 1, "logprobs": 0, **GREEDY}
    first = client.completions.create(**given).choices[0]
    (token,) = program_tokens(program, first.text)[1:]
    other = client.completions.create(logit_bias={str(token): -100}, **given)
    assert other.choices[0].text != first.text


@pytest.mark.parametrize("stream", [False, True])
def test_answers_have_the_form_of_a_schema(client, stream):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    told = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    given = {"messages": HELLO, "max_tokens": 200, "response_format": told, **GREEDY}
    if stream:
        text = joined(client.chat.completions.create(stream=True, **given))
    else:
        text = client.chat.completions.create(**given).choices[0].message.content
    assert json.loads(text)["a"] in ("x", "y")


@pytest.mark.parametrize(
    ("extra", "texts"),
    [
        ({"regex": "ab+c"}, ("abc", "abb")),
        ({"choices": ["yes", "no"]}, ("yes", "no")),
        ({"grammar": 'start: "b" "c"'}, ("bc",)),
    ],
)
def test_other_forms_of_answers(client, extra, texts):
    given = {"messages": HELLO, "max_tokens": 30, "extra_body": extra, **GREEDY}
    made = client.chat.completions.create(**given).choices[0]
    assert made.message.content.startswith(texts)


def test_a_call_of_a_tool_is_read(client):
    given = {"messages": HELLO, "tools": [ADD], "max_tokens": 100, **GREEDY}
    given["extra_body"] = {"regex": CALL}
    made = client.chat.completions.create(**given).choices[0]
    (call,) = made.message.tool_calls
    assert call.function.name == "add"
    assert json.loads(call.function.arguments) == {"a": 1}
    assert made.finish_reason == "tool_calls"
    assert made.message.content is None
    deltas = [
        delta
        for chunk in client.chat.completions.create(stream=True, **given)
        for choice in chunk.choices
        for delta in choice.delta.tool_calls or ()
    ]
    (streamed,) = deltas
    assert streamed.index == 0
    assert streamed.function.arguments == call.function.arguments


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "add"}}]
)
def test_a_call_can_be_required(client, choice, stream):
    given = {"messages": HELLO, "tools": [ADD], "max_tokens": 300, **GREEDY}
    given |= {"tool_choice": choice, "parallel_tool_calls": False}
    if not stream:
        made = client.chat.completions.create(**given).choices[0]
        (call,), reason = made.message.tool_calls, made.finish_reason
    else:
        chunks = list(client.chat.completions.create(stream=True, **given))
        calls = [c.choices[0].delta.tool_calls for c in chunks if c.choices]
        (call,) = [call for found in calls for call in found or ()]
        reason = chunks[-1].choices[0].finish_reason
    assert call.function.name == "add"
    assert json.loads(call.function.arguments)["a"] in range(10)
    assert reason == "tool_calls"


def test_results_of_calls_go_back_to_the_model(client):
    call = {"id": "c1", "type": "function", "function": {"name": "add"}}
    call["function"]["arguments"] = '{"a": 1}'
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    given = {"tools": [ADD], "tool_choice": "none", "max_tokens": 4, **GREEDY}
    made = client.chat.completions.create(messages=messages, **given)
    less = client.chat.completions.create(messages=HELLO, **given)
    assert made.usage.prompt_tokens > less.usage.prompt_tokens
    told = client.chat.completions.create(
        messages=HELLO, tools=[ADD], max_tokens=4, **GREEDY
    )
    assert told.usage.prompt_tokens > less.usage.prompt_tokens


def test_reasoning_stands_beside_the_content(client):
    regex = r"<think>\nwell\n</think>\n\nyes"
    given = {"messages": HELLO, "max_tokens": 100, **GREEDY}
    given["extra_body"] = {"regex": regex}
    made = client.chat.completions.create(**given).choices[0].message
    assert made.content == "yes"
    assert made.reasoning_content == "well"
    stream = list(client.chat.completions.create(stream=True, **given))
    assert joined(stream) == "yes"
    assert joined(stream, "reasoning_content") == "well"


def test_variables_of_the_template_are_given(client):
    given = {"messages": HELLO, "max_tokens": 2, **GREEDY}
    plain = client.chat.completions.create(**given)
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    told = client.chat.completions.create(extra_body=extra, **given)
    assert told.usage.prompt_tokens > plain.usage.prompt_tokens


def test_names_of_special_tokens_are_text(client):
    said = [{"role": "user", "content": "a<|end|>b"}]
    given = {"max_tokens": 1, **GREEDY}
    made = client.chat.completions.create(messages=said, **given)
    short = [{"role": "user", "content": "ab"}]
    less = client.chat.completions.create(messages=short, **given)
    assert made.usage.prompt_tokens > less.usage.prompt_tokens + 1


def test_an_adapter_is_a_model(client):
    given = {"messages": HELLO, "max_tokens": 12, "temperature": 0}
    plain = client.chat.completions.create(model="chat", **given)
    adapted = client.chat.completions.create(model="chat:poet", **given)
    assert adapted.model == "chat:poet"
    content = adapted.choices[0].message.content
    assert content != plain.choices[0].message.content


def test_models_are_listed(client):
    assert [one.id for one in client.models.list()] == ["chat", "chat:poet"]
    assert client.models.retrieve("chat:poet").owned_by == "kvc"
    with pytest.raises(openai.NotFoundError, match="models: chat, chat:poet"):
        client.models.retrieve("cat")


def test_what_cannot_change_an_answer_is_ignored(client):
    given = {"messages": HELLO, "max_tokens": 4, **GREEDY}
    plain = client.chat.completions.create(**given)
    told = client.chat.completions.create(
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=True,
        user="me",
        seed=None,
        modalities=["text"],
        **given,
    )
    assert told.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize(
    ("changes", "param", "said"),
    [
        ({"model": "nope"}, "model", "there is no model 'nope'; models: chat"),
        ({"messages": []}, "messages", "one to 10000 messages"),
        ({"messages": [{"role": "x", "content": "a"}]}, "messages[0].role", "one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "a text"),
        ({"temperature": "hot"}, "temperature", "a number from 0"),
        ({"temperature": float("1e400")}, None, "not JSON"),
        ({"top_p": 2}, "top_p", "from 0 to 1"),
        ({"n": 0}, "n", "from 1 to 128"),
        ({"n": 10**30}, "n", "from 1 to 128"),
        ({"max_tokens": 0}, "max_tokens", "whole number"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"web_search_options": {}}, "web_search_options", "network"),
        ({"audio": {"voice": "x"}}, "audio", "speak"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "reads no"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        (
            {"logit_bias": {"99999": 1}},
            "sequence_bias, logit_bias or bad_words_ids",
            "99999",
        ),
        ({"stop": ["a", "b" * 1025]}, "stop", "at most 1024 characters"),
        ({"regex": "a" * 70_000}, "regex", "at most 65536 characters"),
        (
            {"logprobs": True, "top_logprobs": 20, "n": 32, "max_tokens": 999},
            "max_tokens",
            "at most 524288 log probabilities",
        ),
        ({"logit_bias": dict.fromkeys(map(str, range(2000)), 1)}, "logit_bias", "1024"),
        ({"choices": ["a"] * 2000}, "choices", "1024"),
        ({"choices": [1]}, "choices", "texts"),
        ({"regex": "a", "grammar": "start: /a/"}, "grammar", "one form"),
        ({"tools": [{"type": "x"}]}, "tools[0].type", "function"),
        ({"tools": {}}, "tools", "a list"),
        ({"user": 1}, "user", "a text"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
        ({"regex": "("}, "regex", "regex"),
        ({"stop": ""}, None, None),
        ({"stop": [""]}, "stop", "none empty"),
        ({"stream_options": {}}, "stream_options", "without stream"),
        ({"chat_template_kwargs": {"messages": 1}}, "template_arguments", "names"),
    ],
)
def test_what_is_impossible_is_refused_in_words(server, changes, param, said):
    body = {"model": "chat", "messages": HELLO, "max_tokens": 2, **changes}
    answer = server.post("/v1/chat/completions", json.dumps(body).encode())
    found = answer.json
    if said is None:
        assert answer.status == 400 or found["choices"]
        return
    assert answer.status == (404 if param == "model" else 400), found
    assert found["error"]["param"] == param
    assert said in found["error"]["message"]
    assert found["error"].keys() == {"message", "type", "param", "code"}


def test_a_prompt_that_is_too_long_is_refused(client):
    said = [{"role": "user", "content": "x" * 2000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(messages=said, **GREEDY)
    assert caught.value.code == "context_length_exceeded"
    assert "there is room for" in caught.value.message
    assert "session" not in caught.value.message


def test_a_prompt_that_cannot_fit_is_not_even_encoded(client):
    with pytest.raises(openai.BadRequestError, match="262144 characters"):
        client.completions.create(prompt="x" * 300_000, **GREEDY)
    said = [{"role": "user", "content": [{"type": "text", "text": "x" * 300_000}]}]
    with pytest.raises(openai.BadRequestError, match=r"got 3000\d\d"):
        client.chat.completions.create(messages=said, **GREEDY)


def test_a_missing_model_is_the_only_one(server):
    body = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
    answer = server.post("/v1/chat/completions", body)
    assert answer.json["model"] == "chat"
