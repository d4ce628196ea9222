"""`Constraint`: the form of an answer: JSON, a pattern, one of some texts, a grammar.

In: the caller's settings. Out: the form that they ask for, so far as it can be checked
without a tokenizer.
"""

import json
from collections.abc import Mapping
from typing import Final

from kvc.runtime.generation.json_schemas import schema_text, unknown_keywords
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.setting_checks import check_strings

_NAMES: Final = ("json_schema", "regex", "choices", "grammar")


@frozen
class Constraint:
    """The form that an answer must have.

    Attributes:
        kind: the name of the setting that asks for the form.
        content: a JSON Schema as JSON text, a regular expression, a JSON list of texts,
            or a grammar in the dialect of Lark that llguidance reads, or in GBNF.
    """

    kind: str
    content: str


def constraint_of(given: Mapping[str, object]) -> Constraint | None:
    """Return the form that the caller's settings ask for, None if there is none.

    Raises:
        BadSetting: more than one form is given, or a value is not a form.
    """
    asked = [name for name in _NAMES if given.get(name) is not None]
    if not asked:
        return None
    name, *others = asked
    if others:
        expected = f"none beside {name}: an answer has one form"
        found = repr(given.get(others[0]))[:80]
        raise BadSetting(name=others[0], expected=expected, found=found)
    return Constraint(name, _content_of(name, given.get(name)))


def _content_of(name: str, found: object) -> str:
    if name == "choices":
        texts = check_strings(name, found)
        if not texts:
            raise BadSetting(name=name, expected="at least one text", found="none")
        return json.dumps(texts)
    if name == "json_schema":
        return schema_text(found)
    if not isinstance(found, str) or not found:
        expected = "a text that is not empty"
        raise BadSetting(name=name, expected=expected, found=repr(found)[:80])
    return found


def doubts_of(constraint: Constraint | None) -> str:
    """Return why a form may not be the one that was meant, "" if nothing tells so."""
    if constraint is None or constraint.kind != "json_schema":
        return ""
    unknown = unknown_keywords(constraint.content)
    if not unknown:
        return ""
    return (
        f"json_schema: {', '.join(unknown)}: ignored; JSON Schema has no such "
        f"keyword{'s' if len(unknown) > 1 else ''}"
    )
