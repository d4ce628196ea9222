"""JSON that every reader takes."""

import json
import math

import pytest

from kvc.tools.json_text import json_text


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null(number):
    value = {"a": [1.5, number, (number, {"b": number})], "c": "NaN"}
    text = json_text(value)
    assert text == '{"a": [1.5, null, [null, {"b": null}]], "c": "NaN"}'


def test_the_rest_is_as_json_writes_it():
    value = {"text": "naïve", "rows": [[1, True, None]]}
    for options in ({"indent": 2}, {"ensure_ascii": False}, {}):
        assert json_text(value, **options) == json.dumps(value, **options)
