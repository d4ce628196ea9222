"""Settings of rows by the names of several libraries."""

import pytest

from kvc.schema.errors import BadRow, BadSetting
from kvc.serving.batch.row_settings import RowSettings, arguments_of


def settings(given, place=0, **defaults):
    return RowSettings({}, defaults).of(given, place)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_completion_tokens": 3}, {"max_tokens": 3}),
        ({"stop": ["a", "b"]}, {"stop_strings": ["a", "b"]}),
        ({"stop_token_ids": [1]}, {"stop_tokens": [1]}),
        ({"min_tokens": 2}, {"min_new_tokens": 2}),
        ({"ignore_eos": True}, {"stop_tokens": []}),
        ({"logit_bias": {"5": 1.5}}, {"logit_bias": {5: 1.5}}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": False}, {}),
        ({"logprobs": 3}, {"logprobs": 3}),
        ({"response_format": {"type": "text"}}, {}),
        (
            {"response_format": {"type": "json_object"}},
            {"json_schema": {"type": "object"}},
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            {"json_schema": {}},
        ),
        ({"n": 1, "stream": False, "user": "me", "seed": None}, {}),
    ],
)
def test_settings_of_others_have_names_of_kvcs(given, expected):
    assert arguments_of(given) == expected


@pytest.mark.parametrize(
    ("given", "kind", "reason"),
    [
        ({"temprature": 1}, BadRow, "did you mean 'temperature'?"),
        ({"processors": []}, BadRow, "unknown setting 'processors'"),
        ({"prompt_logprobs": 1}, BadRow, "unknown setting 'prompt_logprobs'"),
        ({"n": 2}, BadSetting, "n: expected 1: a row has one answer"),
        ({"stream": True}, BadSetting, "stream: expected false"),
        ({"num_beams": 2}, BadSetting, "num_beams"),
        ({"top_logprobs": 2}, BadSetting, "unless logprobs is true"),
        (
            {"stop": "a", "stop_strings": "b"},
            BadSetting,
            "another name of stop_strings",
        ),
        ({"response_format": {"type": "x"}}, BadSetting, "response_format: expected"),
        ({"ignore_eos": 1}, BadSetting, "true or false"),
        ({"temperature": "hot"}, BadSetting, "temperature"),
        ({"seed": -1}, BadSetting, "seed"),
    ],
)
def test_what_a_batch_cannot_do_is_refused(given, kind, reason):
    with pytest.raises(kind) as caught:
        settings(given)
    assert reason in str(caught.value)


def test_a_row_replaces_settings_of_the_batch():
    made = settings({"top_p": 0.5}, max_tokens=9, temperature=1.0)
    assert (made.max_tokens, made.temperature, made.top_p) == (9, 1.0, 0.5)
    made = settings({"max_length": 4}, max_tokens=9)
    assert (made.max_tokens, made.max_length) == (None, 4)
    made = settings({"regex": "a"}, json_schema="{}")
    assert made.constraint.kind == "regex"


def test_a_row_has_the_seed_of_its_place_unless_it_has_its_own():
    settings_of = RowSettings({}, {"seed": 10, "temperature": 1.0}).of
    assert [settings_of({}, place).seed for place in (0, 1, 5)] == [10, 11, 15]
    assert settings_of({"seed": 3}, 5).seed == 3


def test_impossible_settings_of_the_batch_are_refused_before_any_row():
    with pytest.raises(BadSetting, match="temperature"):
        RowSettings({}, {"temperature": -1})
