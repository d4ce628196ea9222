"""What lines of a batch become, of kvc's form and OpenAI's."""

import io
import json

import pytest

from kvc.schema.errors import BadRow
from kvc.serving.batch.ids import Ids
from kvc.serving.batch.lines import LONGEST, Line, lines_of, survey
from kvc.serving.batch.rows import row_of

CHAT = [{"role": "user", "content": "Hi"}]


def row(fields, number=1, ids=None):
    raw = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return row_of(Line(number, raw), ids or Ids())


def test_a_line_has_the_number_of_its_place_though_blank_lines_are_left_out():
    file = io.BytesIO(b"\xef\xbb\xbfa\r\n\n  \nb")
    assert [(one.number, one.raw) for one in lines_of(file)] == [(1, b"a"), (4, b"b")]


def test_a_line_that_is_too_long_is_skipped_in_pieces_and_the_next_one_is_read():
    file = io.BytesIO(b"x" * (LONGEST + (3 << 20)) + b"\nnext\n")
    first, second = lines_of(file)
    assert (first.is_too_long, len(first.raw)) == (True, LONGEST + 1)
    assert second == Line(2, b"next")
    assert "more than 16,777,216 bytes" in str(row_of(first, Ids()).error)


def test_a_survey_counts_lines_and_tells_files_apart(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"a\n\nb")
    first = survey(str(path))
    path.write_bytes(b"a\n\nc")
    assert first.count == survey(str(path)).count == 2
    assert first.digest != survey(str(path)).digest


def test_the_number_of_the_line_is_the_id_of_a_row_without_one():
    made = row({"prompt": "a"}, number=7)
    assert (made.id, made.prompt, made.error) == (7, "a", None)


def test_a_prompt_can_be_tokens_and_settings_are_kept_as_they_are():
    made = row({"prompt": [1, 2], "id": "x", "sampling_params": {"stop": "a"}})
    assert (made.id, made.prompt, made.params) == ("x", (1, 2), {"stop": "a"})


def test_the_settings_of_a_request_of_openais_are_the_rest_of_its_body():
    body = {"model": "m", "messages": CHAT, "max_tokens": 3, "temperature": 0}
    url = "/v1/chat/completions"
    made = row({"custom_id": "c", "method": "POST", "url": url, "body": body})
    assert made.error is None
    assert (made.form, made.id, made.model) == ("chat", "c", "m")
    assert made.messages == CHAT
    assert made.params == {"max_tokens": 3, "temperature": 0}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (b"{", "the line is not JSON: Expecting property name"),
        (b'{"prompt": "\xff"}', "the line is not UTF-8: byte 0xff at 12"),
        (b'{"prompt": "\\ud800"}', "the line has half of a character"),
        (b"[" * 99_999, "nested too deeply"),
        (b'{"prompt": ' + b"1" * 5000 + b"}", "too large a number"),
        (b"[1]", "the line is not an object of JSON"),
        ({}, "expected a prompt or messages, found neither"),
        ({"prompt": "a", "messages": CHAT}, "found both"),
        ({"prompt": []}, "prompt: expected at least one token"),
        ({"prompt": [1 << 63]}, "prompt: expected tokens, whole numbers"),
        ({"prompt": {}}, "prompt: expected tokens"),
        ({"messages": []}, "messages: expected a list of objects"),
        ({"messages": ["a"]}, "messages: expected a list of objects"),
        ({"promt": "a"}, "unknown field 'promt' (did you mean 'prompt'?)"),
        ({"prompt": "a", "stop": "b"}, "it belongs into sampling_params"),
        ({"prompt": "a", "system": "b"}, "system goes with messages"),
        ({"prompt": "a", "sampling_params": 1}, "sampling_params: expected an object"),
        ({"prompt": "a", "adapter": 1}, "adapter: expected a text, got 1"),
        ({"messages": CHAT, "tools": 1}, "tools: expected a list of objects"),
        ({"prompt": "a", "id": 1.5}, "id: expected a text or a whole number"),
        ({"prompt": "a", "id": True}, "id: expected a text or a whole number"),
        ({"custom_id": "a"}, "url: expected one of /v1/chat/completions"),
        ({"custom_id": "a", "url": []}, "url: expected one of"),
        ({"url": "/v1/completions", "body": {}}, "custom_id: expected a text"),
        (
            {"custom_id": "a", "url": "/v1/completions", "body": {"messages": CHAT}},
            "body: /v1/completions takes no messages",
        ),
        (
            {"custom_id": "a", "url": "/v1/completions", "method": "GET"},
            "method: expected 'POST', got 'GET'",
        ),
    ],
)
def test_a_line_that_is_no_request_says_why(fields, reason):
    assert reason in str(row(fields).error)


def test_an_id_occurs_once():
    ids = Ids()
    assert row({"prompt": "a", "id": "x"}, 1, ids).error is None
    again = row({"prompt": "a", "id": "x"}, 2, ids)
    assert isinstance(again.error, BadRow)
    assert "an earlier line has the id 'x'" in str(again.error)
    assert row({"prompt": "a", "id": "3"}, 3, ids).error is None  # no number


def test_a_number_can_be_that_of_a_line_or_said():
    ids = Ids()
    assert row({"prompt": "a"}, 1, ids).error is None
    assert "the id 1" in str(row({"prompt": "a", "id": 1}, 2, ids).error)
    assert row({"prompt": "a", "id": 4}, 3, ids).error is None
    assert "the id 4" in str(row({"prompt": "a"}, 4, ids).error)
    assert row({"prompt": "a", "id": -1}, 5, ids).error is None
