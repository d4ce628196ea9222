"""What the caller gives as a JSON Schema: taken out of OpenAI's wrapper, and looked at.

In: a schema as a mapping, a boolean or JSON text. Out: its JSON text, and the keywords
in it that JSON Schema does not have, such as misspelt ones: they would constrain
nothing.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from kvc.schema.errors import BadSetting, meant

_NAME: Final = "json_schema"
# Keywords of drafts 4 to 2020-12 whose value is a schema, or a list of schemas.
_SCHEMAS: Final = frozenset(
    {
        "additionalItems", "additionalProperties", "allOf", "anyOf", "contains",
        "contentSchema", "else", "if", "items", "not", "oneOf", "prefixItems",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
# Keywords whose value has a schema for each name.
_NAMED: Final = frozenset(
    {
        "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties",
        "properties",
    }
)  # fmt: skip
_OTHERS: Final = frozenset(
    {
        "$anchor", "$comment", "$dynamicAnchor", "$dynamicRef", "$id",
        "$recursiveAnchor", "$recursiveRef", "$ref", "$schema", "$vocabulary", "const",
        "contentEncoding", "contentMediaType", "default", "dependentRequired",
        "deprecated", "description", "enum", "examples", "exclusiveMaximum",
        "exclusiveMinimum", "format", "id", "maxContains", "maxItems", "maxLength",
        "maxProperties", "maximum", "minContains", "minItems", "minLength",
        "minProperties", "minimum", "multipleOf", "pattern", "readOnly", "required",
        "title", "type", "uniqueItems", "writeOnly",
    }
)  # fmt: skip
# Those of OpenAPI that say nothing about a value's form.
_NOTES: Final = frozenset({"discriminator", "example", "externalDocs", "xml"})
_KNOWN: Final = _SCHEMAS | _NAMED | _OTHERS | _NOTES
# What stands beside the schema in OpenAI's wrapper.
_WRAPPING: Final = frozenset({"description", "name", "schema", "strict", "type"})


def schema_text(found: object) -> str:
    """Return a schema as JSON text, without OpenAI's wrapper around it.

    Raises:
        BadSetting: it is not JSON.
    """
    expected = "a JSON Schema: a mapping, or its JSON text"
    if isinstance(found, Mapping | bool):
        try:
            return json.dumps(_unwrapped(found))
        except (TypeError, ValueError) as error:
            expected = f"a JSON Schema of JSON values ({error})"
            raise BadSetting(
                name=_NAME, expected=expected, found=repr(found)
            ) from error
    if not isinstance(found, str) or not found:
        raise BadSetting(name=_NAME, expected=expected, found=repr(found)[:80])
    read = _read(found)
    inner = _unwrapped(read)
    return found if inner is read else json.dumps(inner)


def _read(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        found = f"{text[:80]!r}, which is not JSON: {error.msg} ({place})"
    except (ValueError, RecursionError):
        found = f"{text[:80]!r}, which Python's json does not read"
    expected = "a JSON Schema: a mapping, or its JSON text"
    raise BadSetting(name=_NAME, expected=expected, found=found)


def _unwrapped(found: object) -> object:
    """Return the schema in what OpenAI's API takes: `response_format`, or its parts."""
    if not isinstance(found, Mapping):
        return found
    match found:
        case {"type": "json_schema", "json_schema": Mapping() as inner}:
            return _unwrapped(inner)
        case {"schema": Mapping() | bool() as inner} if found.keys() <= _WRAPPING:
            named = isinstance(found.get("name", ""), str)
            kind = found.get("type", "json_schema")
            return inner if named and kind == "json_schema" else found
    return found


def unknown_keywords(text: str) -> list[str]:
    """Return what to say of each keyword of a schema that JSON Schema does not have.

    Args:
        text: the schema as JSON text.
    """
    try:
        found = _unknown(json.loads(text), "")
        said = {f"{path!r}{meant(word, _KNOWN)}": None for path, word in found}
    except RecursionError:  # llguidance refuses it
        return []
    return list(said)


def _unknown(schema: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield for each unknown keyword where it stands, and the keyword."""
    if not isinstance(schema, dict):
        return
    for word, value in schema.items():
        here = f"{path}.{word}" if path else word
        if word not in _KNOWN and not word.startswith("x-"):
            yield here, word
        elif word in _SCHEMAS:
            for one in value if isinstance(value, list) else [value]:
                yield from _unknown(one, here)
        elif word in _NAMED and isinstance(value, dict):
            for name, one in value.items():
                yield from _unknown(one, f"{here}.{name}")
