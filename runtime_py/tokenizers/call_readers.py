"""Read calls of tools from the text between a model's marks, in the forms of families.

In: the text of one region, such as between <tool_call> and </tool_call>, and the types
of the tools' arguments. Out: calls as templates take them back: {"type": "function",
"function": {"name", "arguments"}}, with the "id" that the model gave. A text that is no
call raises ValueError.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

Call = dict[str, object]
Types = Mapping[str, Mapping[str, Sequence[str]]]  # tool -> argument -> JSON's types
Reader = Callable[[str, Types], list[Call]]

_NAMES: Final = ("name", "tool_name", "function")
_ARGUMENTS: Final = ("arguments", "parameters", "args")
_IDS: Final = ("id", "tool_call_id")
# DeepSeek writes its marks with letters of its own.
_BEGIN: Final = "<｜tool▁call▁begin｜>"  # noqa: RUF001
_SEP: Final = "<｜tool▁sep｜>"  # noqa: RUF001
_END: Final = "<｜tool▁call▁end｜>"  # noqa: RUF001


def call(name: str, arguments: object, call_id: object = None) -> Call:
    """Return a call as templates take it.

    Raises:
        ValueError: there is no name, or the arguments are no JSON object.
    """
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not name or not isinstance(arguments, dict):
        raise ValueError("a call needs a name and an object of arguments")
    function = {"name": name, "arguments": arguments}
    made: Call = {"type": "function", "function": function}
    return made if call_id is None else {"id": str(call_id), **made}


# JSON


def json_calls(text: str, types: Types) -> list[Call]:
    """Read calls in JSON: an object, a list of them, or several one after another."""
    return [
        _of_object(one)
        for value in _values(text)
        for one in (value if isinstance(value, list) else [value])
    ]


def _values(text: str) -> Iterator[object]:
    """Yield JSON values, which spaces, commas or semicolons may separate."""
    decoder, at = json.JSONDecoder(), 0
    text = text.strip()
    if not text:
        raise ValueError("there is no call")
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value
        at += len(text) - at - len(text[at:].lstrip(" \t\r\n,;"))


def _of_object(found: object) -> Call:
    """Return the call that a JSON object describes."""
    if not isinstance(found, dict):
        raise ValueError("a call is a JSON object")
    given = found
    if isinstance(found.get("function"), dict):
        given = found["function"]
    name = next((given[key] for key in _NAMES if key in given), None)
    arguments = next((given[key] for key in _ARGUMENTS if key in given), None)
    if not isinstance(name, str) or arguments is None:
        raise ValueError("a call has a name and arguments")
    return call(name, arguments, next((found[k] for k in _IDS if k in found), None))


def mistral_calls(text: str, types: Types) -> list[Call]:
    """Read calls of Mistral: [TOOL_CALLS][{...}] or [TOOL_CALLS]name[ARGS]{...}."""
    found: list[Call] = []
    for one in text.split("[TOOL_CALLS]"):
        name, mark, arguments = one.partition("[ARGS]")
        if not mark:
            found += json_calls(one, types)
            continue
        name, _, call_id = name.partition("[CALL_ID]")
        found.append(call(name.strip(), arguments, call_id or None))
    return found


def deepseek_calls(text: str, types: Types) -> list[Call]:
    """Read calls of DeepSeek, each between marks, with its name before the JSON."""
    found = []
    for one in text.split(_BEGIN)[1:]:
        before, mark, after = one.partition(_SEP)
        after = after.split(_END)[0].strip()
        if not mark:
            raise ValueError("a call has a name and arguments")
        name = before.strip()
        if after.endswith("```"):  # the name follows the mark, then a block of JSON
            name, _, after = after[:-3].partition("```json")
        found.append(call(name.strip(), after.strip()))
    return found or json_calls(text, types)


def kimi_calls(text: str, types: Types) -> list[Call]:
    """Read calls of Kimi: functions.NAME:NUMBER before the arguments in JSON."""
    found = []
    for one in text.split("<|tool_call_begin|>")[1:]:
        told, _, arguments = one.partition("<|tool_call_argument_begin|>")
        name = told.strip().removeprefix("functions.").rpartition(":")[0]
        arguments = arguments.split("<|tool_call_end|>")[0]
        found.append(call(name, arguments, told.strip()))
    if not found:
        raise ValueError("there is no call")
    return found


# XML, with arguments that are texts


_FUNCTION: Final = re.compile(
    r"\s*<function=([^>\n]+)>(.*?)(?:</function>\s*|\Z)(?=<function=|\Z)", re.DOTALL
)
_PARAMETER: Final = re.compile(
    r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|\Z)", re.DOTALL
)
_KEYS: Final = re.compile(
    r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL
)


def xml_calls(text: str, types: Types) -> list[Call]:
    """Read calls of Qwen coders: <function=NAME><parameter=ONE>value</parameter>..."""
    if text.strip().startswith("{"):
        return json_calls(text, types)
    found = [
        call(name.strip(), _typed(_pairs(_PARAMETER, body), types.get(name.strip())))
        for name, body in _pairs(_FUNCTION, text)
    ]
    if not found:
        raise ValueError("there is no call")
    return found


def glm_calls(text: str, types: Types) -> list[Call]:
    """Read a call of GLM: its name, then <arg_key>one</arg_key><arg_value>..."""
    if text.strip().startswith("{"):
        return json_calls(text, types)
    name, mark, rest = text.partition("<arg_key>")
    pairs = _pairs(_KEYS, mark + rest) if mark else []
    return [call(name.strip(), _typed(pairs, types.get(name.strip())))]


def _pairs(pattern: "re.Pattern[str]", text: str) -> list[tuple[str, str]]:
    """Return the groups of matches that follow each other through all of a text."""
    found, at = [], 0
    while at < len(text) and not text[at:].isspace():
        match = pattern.match(text, at)
        if match is None:
            raise ValueError(f"there is something else at {text[at : at + 20]!r}")
        found.append((match[1], match[2]))
        at = match.end()
    return found


def _typed(
    pairs: Sequence[tuple[str, str]], types: Mapping[str, Sequence[str]] | None
) -> dict[str, object]:
    """Return arguments, of the types that the tool's schema says."""
    known = types or {}
    return {
        name.strip(): value_of(text, known.get(name.strip(), ()))
        for name, text in pairs
    }


def value_of(text: str, types: Sequence[str]) -> object:
    """Return a text as a value of one of JSON's types; the text if it is of none."""
    for kind in types:
        if kind == "string":
            return text
        if kind == "boolean" and text.strip().lower() in ("true", "false"):
            return text.strip().lower() == "true"
        if kind == "null" and text.strip() == "None":
            return None
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if _is_of(kind, value):
            is_float = kind == "integer" and isinstance(value, float)
            return int(value) if is_float else value  # type: ignore[call-overload]
    return text


def _is_of(kind: str, value: object) -> bool:
    match kind:
        case "integer":
            is_whole = isinstance(value, float) and value.is_integer()
            return is_whole or (isinstance(value, int) and not isinstance(value, bool))
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "null":
            return value is None
    return False


# Calls as in Python, and of Gemma


def python_calls(text: str, types: Types) -> list[Call]:
    """Read calls as Python writes them: [add(a=1), now()], or tool.call(a="b")."""
    if text.strip().startswith("{"):
        return json_calls(text, types)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from error
    listed = tree.elts if isinstance(tree, ast.List) else [tree]
    if not listed:
        raise ValueError("there is no call")
    return [_of_tree(one) for one in listed]


def _of_tree(tree: ast.expr) -> Call:
    if not isinstance(tree, ast.Call) or tree.args:
        raise ValueError("a call has named arguments")
    target = tree.func
    if isinstance(target, ast.Attribute) and target.attr == "call":
        target = target.value
    arguments = {}
    for one in tree.keywords:
        if one.arg is None:
            raise ValueError("a call has named arguments")
        try:
            arguments[one.arg] = ast.literal_eval(one.value)
            json.dumps(arguments[one.arg])
        except (ValueError, TypeError) as error:
            raise ValueError(f"argument {one.arg} is no constant of JSON") from error
    return call(ast.unparse(target), arguments)


_STRING: Final = re.compile(r'<escape>(.*?)<escape>|<\|"\|>(.*?)<\|"\|>', re.DOTALL)
_KEY: Final = re.compile(r"([{,]\s*)([A-Za-z_]\w*)\s*:")


def gemma_calls(text: str, types: Types) -> list[Call]:
    """Read a call of Gemma: call:NAME{one:<escape>text<escape>,two:3}."""
    mark, _, rest = text.strip().partition(":")
    name, _, body = rest.partition("{")
    if mark != "call":
        raise ValueError("a call begins with call:")
    texts: dict[str, str] = {}

    def note(match: "re.Match[str]") -> str:
        place = f"<escape>{len(texts)}"
        texts[place] = next(one for one in match.groups() if one is not None)
        return json.dumps(place)

    plain = _STRING.sub(note, "{" + body)
    found: object = json.loads(_KEY.sub(r'\1"\2":', plain))
    return [call(name.strip(), _filled(found, texts))]


def _filled(value: object, texts: Mapping[str, str]) -> object:
    """Return a value with its texts in place of their numbers.

    Raises:
        ValueError: there is no text of a number: the model wrote the mark itself.
    """
    match value:
        case dict():
            return {key: _filled(one, texts) for key, one in value.items()}
        case list():
            return [_filled(one, texts) for one in value]
        case str() if value.startswith("<escape>"):
            if value not in texts:
                raise ValueError(f"a text begins with {value[:20]!r}")
            return texts[value]
    return value


# Types of arguments


def types_of(tools: Sequence[Mapping[str, object]] | None) -> Types:
    """Return the types of the arguments of tools, by the tools' JSON schemas."""
    found = {}
    for tool in tools or ():
        function = _mapping(tool, "function") or tool
        properties = _mapping(_mapping(function, "parameters"), "properties")
        found[str(function.get("name"))] = {
            name: _names(schema) for name, schema in properties.items()
        }
    return found


def _mapping(found: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = found.get(name)
    return value if isinstance(value, Mapping) else {}


def _names(schema: object) -> list[str]:
    """Return the names of the types that a schema allows."""
    if not isinstance(schema, Mapping):
        return []
    stated = schema.get("type")
    names = [stated] if isinstance(stated, str) else []
    if isinstance(stated, list):
        names += [one for one in stated if isinstance(one, str)]
    for union in ("anyOf", "oneOf"):
        parts = schema.get(union)
        for part in parts if isinstance(parts, list) else []:
            names += _names(part)
    return [*names, "null"] if schema.get("nullable") else names
