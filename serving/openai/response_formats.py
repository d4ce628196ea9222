"""`response_format`: the form that an answer must have, as a JSON schema."""

from kvc.serving.openai.fields import Fields


def schema_in(fields: Fields) -> object:
    """Return the JSON schema of the answer, None if it may be any text.

    Raises:
        BadSetting: the format is unknown, or has no schema.
    """
    found = fields.inner("response_format")
    if found is None:
        return None
    match found.get("type"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            inner = found.inner("json_schema")
            schema = None if inner is None else inner.get("schema")
            if not isinstance(schema, dict | bool):
                raise found.bad("json_schema", 'an object with "schema", a JSON schema')
            return schema
    raise found.bad("type", "text, json_object or json_schema")
