"""Describe Python functions as tools: JSON schemas of signatures and docstrings.

In: a function with type hints and a docstring in Google's style, which describes each
argument. Out: what `get_json_schema` of transformers (5.23) makes of the function:
{"type": "function", "function": {"name", "description", "parameters"}}. Hints of
classes, such as pictures, are refused; write the schema of such a tool by hand.
"""

import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from kvc.schema.errors import BadSetting

Schema = dict[str, object]

_SCALARS: Final[dict[object, str]] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
}
_PLAIN: Final[Mapping[object, str]] = {
    **_SCALARS,
    list: "array",
    tuple: "array",
    dict: "object",
}
_SECTIONS: Final = r"(?:Args|Returns|Raises):"
_ABOUT: Final = re.compile(rf"^(.*?)[\n\s]*({_SECTIONS}|\Z)", re.DOTALL)
_ARGS: Final = re.compile(r"\n\s*Args:\n(.*?)[\n\s]*(?:Returns:|Raises:|\Z)", re.DOTALL)
_RETURNS: Final = re.compile(r"\n\s*Returns:\n\s*(.*?)[\n\s]*(?:Raises:|\Z)", re.DOTALL)
# An argument's indent, name and description, up to the next name of this indent.
_ARG: Final = re.compile(
    r"(?:^|\n)([ \t]*)(\w+):\s*(.*?)\s*(?=\n(?!\1[ \t])[ \t]*\w+:|\Z)", re.DOTALL
)
_CHOICES: Final = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


def schema_of(function: Callable[..., object]) -> Schema:
    """Return the description of a function as a tool.

    Raises:
        BadSetting: the function has no docstring, or an argument has no type hint, no
            description, or a type that JSON has no name for.
    """
    name = getattr(function, "__name__", "operation")
    text = (inspect.getdoc(function) or "").strip()
    if not text:
        raise _bad(name, "a docstring, which tells the model what the tool does")
    about, told, returned = _told(text)
    parameters, result = _parameters(function, name)
    for argument, schema in _properties(parameters).items():
        if argument not in told:
            raise _bad(
                name, f"a description of {argument} under Args: in its docstring"
            )
        schema |= _described(told[argument], name)
    made: Schema = {"name": name, "description": about, "parameters": parameters}
    if result is not None:
        made["return"] = (
            result if returned is None else {**result, "description": returned}
        )
    return {"type": "function", "function": made}


def _told(text: str) -> tuple[str, Mapping[str, str], str | None]:
    """Return what a docstring tells of its function, its arguments and its result."""
    about, args, returned = (
        _ABOUT.search(text),
        _ARGS.search(text),
        _RETURNS.search(text),
    )
    lines = "" if args is None else args[1]
    lines = "\n".join(line for line in lines.split("\n") if line.strip())
    told = {
        name: re.sub(r"\s*\n+\s*", " ", words.strip())
        for _, name, words in _ARG.findall(lines)
    }
    first = "" if about is None else about[1].strip()
    return first, told, None if returned is None else returned[1].strip()


def _described(words: str, name: str) -> Schema:
    """Return the part of an argument's schema that its description states."""
    found = _CHOICES.search(words)
    if found is None:
        return {"description": words}
    try:
        choices: object = json.loads(found[1])
    except ValueError:
        choices = None
    if not isinstance(choices, list):
        raise _bad(name, f"a list in JSON after choices:, not {found[1]!r}")
    stripped = [one.strip() if isinstance(one, str) else one for one in choices]
    return {"enum": stripped, "description": words[: found.start()].strip()}


def _parameters(
    function: Callable[..., object], name: str
) -> tuple[Schema, Schema | None]:
    """Return the schemas of all arguments together, and of the result if it has one."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise _bad(name, f"type hints that can be read ({error})") from error
    given = dict(inspect.signature(function).parameters)
    first = next(iter(given), "")
    if first in ("self", "cls") and given[first].annotation is inspect.Parameter.empty:
        del given[first]
        hints.pop(first, None)
    for one, parameter in given.items():
        if parameter.annotation is inspect.Parameter.empty:
            raise _bad(name, f"a type hint of {one}")
    result = hints.pop("return", inspect.Parameter.empty)
    properties = {one: _schema(hint, name) for one, hint in hints.items()}
    made: Schema = {"type": "object", "properties": properties}
    needed = [one for one, p in given.items() if p.default is inspect.Parameter.empty]
    if needed:
        made["required"] = needed
    if result is inspect.Parameter.empty:
        return made, None
    try:
        return made, _schema(result, name)
    except BadSetting:  # the model never makes the result
        return made, None


def _schema(hint: Any, name: str) -> Schema:  # noqa: ANN401  any object may be a hint
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin is None and isinstance(hint, type) and issubclass(hint, Enum):
        return _choice([member.value for member in hint], hint, name)
    if origin is None and hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin in (Union, types.UnionType):
        return _union(args, name)
    if origin is Literal:
        return _choice(list(args), hint, name)
    if origin is list:
        return {"type": "array", "items": _schema(args[0], name)}
    if origin is tuple and len(args) > 1 and ... not in args:
        return {"type": "array", "prefixItems": [_schema(one, name) for one in args]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(args[1], name)}
    raise _bad(name, f"type hints of JSON's types, not {hint!r}")


def _union(args: Iterable[object], name: str) -> Schema:
    args = list(args)
    parts = [_schema(one, name) for one in args if one is not type(None)]
    made: Schema
    if len(parts) == 1:
        made = parts[0]
    elif all(
        part.keys() == {"type"} and isinstance(part["type"], str) for part in parts
    ):
        names = sorted({str(part["type"]) for part in parts})
        made = {"type": names[0] if len(names) == 1 else names}
    else:
        made = {"anyOf": parts}
    return made | ({"nullable": True} if type(None) in args else {})


def _choice(values: Sequence[object], hint: object, name: str) -> Schema:
    if not values or any(type(value) not in _SCALARS for value in values):
        raise _bad(
            name, f"choices that are texts, numbers, truth values or None: {hint!r}"
        )
    kinds = list(dict.fromkeys(_SCALARS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def _properties(parameters: Schema) -> dict[str, Schema]:
    found = parameters["properties"]
    assert isinstance(found, dict)
    return found


def _bad(name: str, expected: str) -> BadSetting:
    hint = "or its JSON schema in place of the function"
    return BadSetting(name="tools", expected=f"{expected}, {hint}", found=f"{name}()")
