"""Run chat templates in jinja2's sandbox, with the functions of transformers.

In: the text of a template. Out: a parsed template. Templates are written for the
functions of `transformers.utils.chat_template_utils` (5.23), and get functions with the
same names and results. Only `template_process.py` runs this module, in a subprocess; it
imports the package jinja2, and nothing of kvc.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


def new_template(text: str) -> Template:
    """Return a parsed template.

    Raises:
        Exception: any error of parsing.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": _now,
        "namespace": _Names,
        "dict": _Dict(),
    }
    return environment.from_string(text)


class _Generation(Extension):
    """The tag {% generation %}, which marks the model's answers; it has no effect."""

    tags = {"generation"}  # noqa: RUF012  jinja2 reads it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block between the tags, with a scope for its own variables."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Names(Namespace):
    """An object that `namespace()` makes; its names must not begin with "_"."""

    def __init__(*args: object, **kwargs: object) -> None:
        # The signature of jinja2's class, so that "self" is a valid name.
        own, *given = args
        values = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(own, values)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"{name!r} is not a valid name of an attribute")


class _Dict:
    """Stands for `dict` in templates, without the attributes of the class `dict`."""

    def __call__(self, *args: Mapping[str, object], **kwargs: object) -> object:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[object], value: object = None) -> object:
        """Return a dict with the same value for every key."""
        return dict.fromkeys(keys, value)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    """Return the local time as text, for templates that state the date."""
    return datetime.now().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON, without the HTML escapes of jinja2's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
