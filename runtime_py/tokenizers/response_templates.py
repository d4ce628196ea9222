"""The form of answers that tokenizer_config.json describes: its "response_template".

In: the description, as transformers (5.23, `utils/chat_parsing`) reads it. Out: a form.
A description is untrusted, and so are its patterns: quantified groups, which can take
exponential time, are refused. Pieces of an answer are late where patterns mark regions,
since only the end of the answer tells whether a pattern matches.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvc.runtime.tokenizers.call_readers import Types, value_of
from kvc.runtime.tokenizers.reply_forms import Form, ReadValues, Region
from kvc.runtime.tokenizers.reply_marks import Mark, Pattern, Texts
from kvc.schema.errors import BadChatTemplate

FILE: Final = "tokenizer_config.json"
_TOP: Final = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_ENDS: Final = ("open", "open_pattern", "close", "close_pattern")
_FIELD: Final = {
    *_ENDS,
    *("content", "content_args", "repeats", "join", "optional"),
    *("transform", "transform_each"),
}
_LONGEST: Final = 1000  # characters of a pattern
_HOLE: Final = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_GROUP_REPEATED: Final = re.compile(r"(?<!\\)(?:\\\\)*\)[*+?{]")

_Object = Mapping[str, object]
_Read = Callable[[str, _Object], object]


def described_form(found: object) -> Form:
    """Return the form that a response template describes.

    Raises:
        BadChatTemplate: the description is not one that transformers would take, or has
            a pattern that may take too long.
    """
    try:
        return _form(_object(found, "it", _TOP))
    except _WrongError as error:
        reason = f"its response_template: {error}"
        raise BadChatTemplate(file=FILE, reason=reason) from error


class _WrongError(ValueError):
    """A part of the description is not as it must be."""


def _object(found: object, name: str, known: set[str] | None = None) -> _Object:
    if not isinstance(found, dict) or not found.keys() <= (known or found.keys()):
        raise _WrongError(f"{name} is no object, or has other parts")
    return found


def _form(found: _Object) -> Form:
    if found.get("version", 1) != 1:
        raise _WrongError(f"version {found['version']!r}, not 1")
    fields = _object(found.get("fields", {}), "fields")
    defaults = _object(found.get("defaults", {}), "defaults")
    regions = [_region(name, one) for name, one in fields.items()]
    rest = [region for region in regions if region.opens is None]
    anchor = _mark_of(found, "start_anchor", "start_anchor_pattern")
    if not fields or len(rest) > 1 or anchor is None:
        raise _WrongError("it needs fields, at most one without open, and start_anchor")
    return Form(
        FILE,
        tuple(region for region in regions if region.opens is not None),
        rest=replace(rest[0], join="\n") if rest else None,
        anchor=anchor
        if isinstance(anchor, Pattern)
        else Pattern("|".join(map(re.escape, anchor.texts))),
        strips=True,
        defaults=defaults,
    )


def _region(name: str, found: object) -> Region:
    field = _object(found, name, _FIELD)
    kind, args = field.get("content", "text"), field.get("content_args", {})
    if not isinstance(kind, str) or kind not in _READERS:
        raise _WrongError(f"{name} has content {kind!r}, none of {', '.join(_READERS)}")
    join, repeats = field.get("join"), bool(field.get("repeats", False))
    if not (join is None or (isinstance(join, str) and repeats)):
        raise _WrongError(f"{name} has a join that is no text, or does not repeat")
    plain = kind == "text" and "transform" not in field and (join or not repeats)
    each = field.get("transform_each") is True
    arguments = _object(args, f"{name}, content_args")
    return Region(
        name,
        _mark_of(field, "open", "open_pattern"),
        _mark_of(field, "close", "close_pattern"),
        read=None if plain else _reader(kind, arguments, field.get("transform"), each),
        several=repeats,
        join=join if isinstance(join, str) else None,
    )


def _mark_of(found: _Object, literal: str, pattern: str) -> Mark | None:
    if literal in found and pattern in found:
        raise _WrongError(f"it has {literal} and {pattern}")
    if pattern in found:
        return _pattern(found[pattern])
    if literal not in found:
        return None
    given = found[literal]
    texts: list[object] = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise _WrongError(f"{literal} is no text, and no list of texts")
    return Texts(tuple(map(str, texts)))


def _pattern(found: object) -> Pattern:
    """Return a compiled pattern.

    Raises:
        _WrongError: it is no pattern, or repeats a group, which may take very long.
    """
    if not isinstance(found, str) or len(found) > _LONGEST:
        raise _WrongError(f"a pattern is a text of at most {_LONGEST} characters")
    if _GROUP_REPEATED.search(found):
        raise _WrongError(f"pattern {found!r} repeats a group, which may take too long")
    try:
        return Pattern(found)
    except ValueError as error:
        raise _WrongError(f"pattern {found!r}: {error}") from error


# Contents of regions


def _reader(kind: str, args: _Object, transform: object, each: bool) -> ReadValues:
    """Return a function that reads the text of a region."""
    content = _READERS[kind](args)
    _check_holes(transform)

    def read(text: str, groups: Mapping[str, str], types: Types) -> list[object]:
        value = content(text, args)
        if transform is None:
            return [value]
        values = value if each and isinstance(value, list) else [value]
        made = [
            _typed(_filled(transform, {**groups, **_scope(one, each)}), types)
            for one in values
        ]
        return [made] if each else made

    return read


def _scope(value: object, each: bool) -> _Object:
    """Return the names that a transform knows for a value.

    Raises:
        ValueError: the value has no names of its own.
    """
    if not each:
        return {"content": value}
    if not isinstance(value, dict):
        raise ValueError("it is no list of objects")
    return value


def _check_holes(transform: object) -> None:
    match transform:
        case dict():
            for one in transform.values():
                _check_holes(one)
        case list():
            for one in transform:
                _check_holes(one)
        case str() if _HOLE.search(transform) and not _HOLE.fullmatch(transform):
            raise _WrongError(f"transform {transform!r} has text beside a placeholder")


def _filled(transform: object, scope: _Object) -> object:
    """Return a transform with the values of its placeholders.

    Raises:
        ValueError: a value is missing.
    """
    if isinstance(transform, dict):
        return {key: _filled(one, scope) for key, one in transform.items()}
    if isinstance(transform, list):
        return [_filled(one, scope) for one in transform]
    hole = _HOLE.fullmatch(transform) if isinstance(transform, str) else None
    if hole is None:
        return transform
    value: object = scope
    for key in hole[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"it has no {hole[1]}")
        value = value[key]
    return value


def _typed(value: object, types: Types) -> object:
    """Return a call whose arguments have the types that the tool's schema says."""
    match value:
        case {
            "function": {"name": str(name), "arguments": dict(arguments)} as function
        }:
            known = types.get(name, {})
            typed = {
                key: value_of(one, known.get(key, ())) if isinstance(one, str) else one
                for key, one in arguments.items()
            }
            return {**_dict(value), "function": {**function, "arguments": typed}}
    return value


def _dict(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _text(text: str, args: _Object) -> object:
    return text.strip() if args.get("strip", True) else text


def _json(text: str, args: _Object) -> object:
    """Read JSON; texts may have other quotes and keys none, if `args` say so."""
    texts: list[str] = []
    plain = text
    delimiters = args.get("string_delims", [])
    for one in delimiters if isinstance(delimiters, list) else []:
        opens, closes = map(str, one)

        def note(match: "re.Match[str]") -> str:
            texts.append(match[1])
            return f"\x01{len(texts) - 1}\x02"

        plain = re.sub(
            re.escape(opens) + "(.*?)" + re.escape(closes), note, plain, flags=re.DOTALL
        )
    if args.get("unquoted_keys"):
        plain = re.sub(r"(?<=[{,])(\w+):", r'"\1":', plain)
    for number, one in enumerate(texts):
        plain = plain.replace(f"\x01{number}\x02", json.dumps(one))
    try:
        found: object = json.loads(plain)
    except ValueError:
        if not args.get("allow_non_json"):
            raise
        return _text(text, args)
    return found


def _pairs_in_tags(args: _Object) -> _Read:
    """Return a function that reads tags such as <one>value</one> into an object."""
    pattern = _pattern(args.get("tag_pattern"))
    if not {"key", "value"} <= pattern.groups:
        raise _WrongError("tag_pattern needs the groups key and value")
    part = _value_reader(args)

    def read(text: str, args: _Object) -> object:
        made: dict[str, object] = {}
        for found in pattern.all_in(text):
            key, value = found.groups["key"], part(found.groups["value"])
            if key in made and args.get("merge_duplicates"):
                before = made[key]
                made[key] = [*(before if isinstance(before, list) else [before]), value]
            else:
                made[key] = value
        return made

    return read


def _pairs_in_lines(args: _Object) -> _Read:
    """Return a function that reads lines such as one:value into an object."""
    lines, sign = str(args.get("line_sep", "\n")), str(args.get("kv_sep", ":"))
    if not lines or not sign:
        raise _WrongError("line_sep and kv_sep are not empty")
    part = _value_reader(args)

    def read(text: str, args: _Object) -> object:
        pairs = (line.partition(sign) for line in text.split(lines) if sign in line)
        strip = str.strip if args.get("strip", True) else str
        return {strip(key): part(strip(value)) for key, _, value in pairs}

    return read


def _value_reader(args: _Object) -> Callable[[str], object]:
    """Return the reader of single values that `args` name; texts by default."""
    if args.get("value_parser") is None:
        return str
    told = _object(args["value_parser"], "value_parser", {"name", "args"})
    name = told.get("name", "text")
    own = _object(told.get("args", {}), "value_parser, args")
    if not isinstance(name, str) or name not in _READERS:
        raise _WrongError(f"value_parser {name!r}, none of {', '.join(_READERS)}")
    read = _READERS[name](own)
    return lambda text: read(text, own)


def _plain(read: _Read) -> Callable[[_Object], _Read]:
    return lambda args: read


_READERS: Final[Mapping[str, Callable[[_Object], _Read]]] = {
    "text": _plain(_text),
    "int": _plain(lambda text, args: int(text.strip())),
    "float": _plain(lambda text, args: float(text.strip())),
    "bool": _plain(lambda text, args: text.strip().lower() in ("true", "1")),
    "json": _plain(_json),
    "xml-inline": _pairs_in_tags,
    "kv-lines": _pairs_in_lines,
}
