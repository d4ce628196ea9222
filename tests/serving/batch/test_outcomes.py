"""Lines of the output: log probabilities as kvc serve tells them."""

import json

from kvc.runtime.generation import TokenLogprob
from kvc.runtime.tokenizers import Bytes
from kvc.serving.batch.ids import Ids
from kvc.serving.batch.lines import Line
from kvc.serving.batch.outcomes import Answered, outcome_of
from kvc.serving.batch.rows import row_of

LOGS = [TokenLogprob(byte, -0.5, ((byte, -0.5), (97, -9e99))) for byte in "é".encode()]


def logprobs(url, body, tokenizer):
    fields = {"custom_id": "a", "url": url, "body": body}
    row = row_of(Line(1, json.dumps(fields).encode()), Ids())
    assert row.error is None
    text = None if tokenizer is None else "é"
    answer = Answered(text, [1, 2], "stop", [97, 98], logprobs=LOGS)
    line = json.loads(outcome_of(row, answer, tokenizer).raw)
    body = line["response"]["body"]
    assert body["usage"]["prompt_tokens"] == 2
    return body["choices"][0]["logprobs"]


def test_parts_of_characters_have_their_bytes_and_offsets():
    found = logprobs("/v1/completions", {"prompt": "ab"}, Bytes())
    assert found["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert found["text_offset"] == [0, 0]
    assert found["top_logprobs"][0] == {"bytes:\\xc3": -0.5, "a": -9e99}
    messages = [{"role": "user", "content": "a"}]
    chat = logprobs("/v1/chat/completions", {"messages": messages}, Bytes())
    assert [one["bytes"] for one in chat["content"]] == [[0xC3], [0xA9]]


def test_without_a_tokenizer_tokens_are_numbers():
    found = logprobs("/v1/completions", {"prompt": [1, 2]}, None)
    assert found["tokens"] == ["195 ", "169 "]
    assert found["text_offset"] == [0, 4]
