"""What is given as a JSON Schema: wrappers, and keywords that do not exist."""

import json

import pytest

from kvc.runtime import SettingIgnored
from kvc.runtime.generation.json_schemas import schema_text, unknown_keywords
from kvc.runtime.generation.settings import settings_of

NUMBER = {"type": "integer", "maximum": 9}
NAMED = {"name": "age", "schema": NUMBER, "strict": True}


@pytest.mark.parametrize(
    "wrapped",
    [
        {"schema": NUMBER},
        NAMED,
        {"type": "json_schema", **NAMED},
        {"type": "json_schema", "json_schema": NAMED},
    ],
)
def test_a_schema_is_taken_out_of_what_openai_takes(wrapped):
    assert json.loads(schema_text(wrapped)) == NUMBER
    assert json.loads(schema_text(json.dumps(wrapped))) == NUMBER


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"name": NUMBER, "schema": NUMBER}},
        {"name": "x", "schema": 3},
        {"name": "x", "schema": NUMBER, "properties": {}},
        True,
    ],
)
def test_what_is_no_wrapper_stays(schema):
    assert json.loads(schema_text(schema)) == schema
    text = json.dumps(schema, indent=1)
    assert schema_text(text) == text


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"proprties": {}}, ["'proprties' (did you mean 'properties'?)"]),
        (
            {"items": {"maxlength": 3}},
            ["'items.maxlength' (did you mean 'maxLength'?)"],
        ),
        (
            {"properties": {"items": {"anyOf": [{"typ": 1}, {"nullable": True}]}}},
            [
                "'properties.items.anyOf.typ' (did you mean 'type'?)",
                "'properties.items.anyOf.nullable'",
            ],
        ),
        ({"$defs": {"tpye": {"not": {"enum": [{"a": 1}]}}}}, []),
        ({"x-order": 1, "example": 3, "title": "A", "const": {"typ": 3}}, []),
        ({"dependencies": {"a": ["b"], "c": {"a": 1}}}, ["'dependencies.c.a'"]),
        ({"additionalProperties": False, "items": True}, []),
    ],
)
def test_unknown_keywords_are_found_where_schemas_stand(schema, told):
    assert unknown_keywords(json.dumps(schema)) == told


def test_the_warning_names_all_once():
    schema = {"propertys": {}, "requird": []}
    with pytest.warns(SettingIgnored) as caught:
        settings_of({}, {"json_schema": schema})
    (message,) = [str(one.message) for one in caught]
    assert message == (
        "json_schema: 'propertys' (did you mean 'properties'?), 'requird' (did you "
        "mean 'required'?): ignored; JSON Schema has no such keywords"
    )
