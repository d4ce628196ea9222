"""Options of commands that generate text.

A command decorated with `generation_options` gets one argument `settings`, which says
how to choose tokens and when to stop, for `kvc.runtime.generate`; settings that the
user leaves out are the bundle's. With `form_options` above it, `settings` also says
which form answers have.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, cast

import click

from kvc.tools.inputs import check_text, text_of
from kvc.tools.numbers import Number, WholeNumber

if TYPE_CHECKING:
    from kvc.runtime.generation import Arguments

_SHARE = Number(min=0, max=1)
_Option = Callable[[Callable[..., None]], Callable[..., None]]

_CHOICE: Final = {
    "max_tokens": click.option(
        "--max-tokens",
        "-n",
        type=WholeNumber(min=0),
        metavar="N",
        help="Stop after N tokens.  [default: the bundle's setting, or no limit]",
    ),
    "min_new_tokens": click.option(
        "--min-tokens",
        "min_new_tokens",
        type=WholeNumber(min=0),
        metavar="N",
        help="The model does not end the text before N tokens.",
    ),
    "temperature": click.option(
        "--temperature",
        type=Number(min=0),
        metavar="T",
        help="Sampling temperature; 0 always takes the likeliest token.  [default: the "
        "bundle's setting, or 0]",
    ),
    "top_k": click.option(
        "--top-k",
        type=WholeNumber(min=0),
        metavar="K",
        help="Sample from the K likeliest tokens; 0 for all.",
    ),
    "top_p": click.option(
        "--top-p",
        type=_SHARE,
        metavar="P",
        help="Sample from the likeliest tokens whose probabilities add up to P.",
    ),
    "min_p": click.option(
        "--min-p",
        type=_SHARE,
        metavar="P",
        help="Sample from the tokens at least P times as likely as the likeliest.",
    ),
    "typical_p": click.option(
        "--typical-p",
        type=_SHARE,
        metavar="P",
        help="Sample from the most typical tokens whose probabilities add up to P.",
    ),
    "repetition_penalty": click.option(
        "--repetition-penalty",
        type=Number(min=0, min_open=True),
        metavar="R",
        help="Above 1: tokens that were there before become less likely.",
    ),
    "frequency_penalty": click.option(
        "--frequency-penalty",
        type=Number(),
        metavar="B",
        help="Taken off a token's logit for each time that the answer has it.",
    ),
    "presence_penalty": click.option(
        "--presence-penalty",
        type=Number(),
        metavar="B",
        help="Taken off the logits of tokens that the answer has.",
    ),
    "no_repeat_ngram_size": click.option(
        "--no-repeat-ngram",
        "no_repeat_ngram_size",
        type=WholeNumber(min=0),
        metavar="N",
        help="No N tokens follow each other twice.",
    ),
    "seed": click.option(
        "--seed",
        type=WholeNumber(min=0),
        metavar="S",
        help="Seed of the random numbers; the same seed gives the same text.",
    ),
    "stop_strings": click.option(
        "--stop",
        "stop_strings",
        multiple=True,
        metavar="TEXT",
        help="Stop before TEXT. Repeatable.",
    ),
    "forced_bos_token_id": click.option(
        "--forced-bos",
        "forced_bos_token_id",
        type=WholeNumber(min=0),
        metavar="TOKEN",
        help="The token after the first, such as the language to translate into, of a "
        "model with an encoder.  [default: the bundle's setting]",
    ),
}
_TEXTS: Final = {"choices": "--choice", "regex": "--regex", "stop_strings": "--stop"}
_FILES: Final = {"json_schema": "--json-schema", "grammar": "--grammar"}
_FORM: Final = {
    "json_schema": click.option(
        "--json-schema",
        metavar="FILE",
        help="The answer is JSON of the JSON Schema in FILE (kvc[grammar]); - for "
        "stdin, or the schema itself, which begins with {.",
    ),
    "regex": click.option(
        "--regex",
        metavar="PATTERN",
        help="The whole answer matches a regular expression.",
    ),
    "choices": click.option(
        "--choice",
        "choices",
        multiple=True,
        metavar="TEXT",
        help="The answer is TEXT. Repeatable: it is one of the texts.",
    ),
    "grammar": click.option(
        "--grammar",
        metavar="FILE",
        help="The answer follows the grammar in FILE, in Lark's notation or GBNF; - "
        "for stdin.",
    ),
}


def generation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for generation to a command, which gets them as `settings`."""

    def settings_of(given: dict[str, Any]) -> "Arguments":
        settings: Arguments = given.pop("settings", {})
        for name in _CHOICE:
            found = given.pop(name)
            settings[name] = _readable(name, found)  # type: ignore[literal-required]
        return settings

    return _with_settings(command, list(_CHOICE.values()), settings_of)


def form_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the form of answers to a command with generation options."""

    def settings_of(given: dict[str, Any]) -> "Arguments":
        settings: Arguments = {}
        for name in _FORM:
            found = given.pop(name)
            if found is not None and name in _FILES:
                found = _content_of(name, found, given)
            settings[name] = _readable(name, found)  # type: ignore[literal-required]
        return settings

    return _with_settings(command, list(_FORM.values()), settings_of)


def _with_settings(
    command: Callable[..., None],
    options: Sequence[_Option],
    settings_of: Callable[[dict[str, Any]], "Arguments"],
) -> Callable[..., None]:
    @wraps(command)
    def with_settings(**given: object) -> None:
        settings = settings_of(given)
        command(settings=settings, **given)

    made: Callable[..., None] = with_settings
    for option in reversed(options):
        made = option(made)
    return made


def _readable(name: str, found: object) -> object:
    """Return the value of an option, None for an option that is not given.

    Raises:
        click.UsageError: a text is not UTF-8.
    """
    if found == ():
        return None
    for text in found if isinstance(found, tuple) else (found,):
        if isinstance(text, str):
            check_text(text, _TEXTS.get(name, name))
    return found


def _content_of(name: str, found: str, given: Mapping[str, object]) -> str:
    """Return the form that an option names: a file's text, that of stdin, or itself.

    Raises:
        click.BadParameter: the file cannot be read, or is not what it should be.
        click.UsageError: something else reads stdin.
    """
    option = _FILES[name]
    if found == "-" and "-" in cast("Sequence[str]", given.get("prompts", "-")):
        # Without prompts they are messages, which stdin has.
        raise click.UsageError(
            f"{option} -: stdin has prompts; give the name of a file"
        )
    if name != "json_schema":
        return text_of(found, option)
    if found.lstrip().startswith("{"):
        return _checked_json(found, "the text", option)
    return _checked_json(text_of(found, option), found, option)


def _checked_json(text: str, named: str, option: str) -> str:
    """Return a text.

    Raises:
        click.BadParameter: it is not JSON.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        reason = f"{named} is not JSON: {error.msg} ({place})"
        raise click.BadParameter(reason, param_hint=option) from error
    except (ValueError, RecursionError):
        pass  # too large a number, or nested too deeply: refused as a schema
    return text


def form_option(settings: "Arguments") -> str:
    """Return the option that says which form answers have, "" without one."""
    names = {**_TEXTS, **_FILES}
    given = (names[name] for name in _FORM if settings.get(name) is not None)
    return next(given, "")


def _echo(text: str) -> None:
    click.echo(text, err=True)


@contextmanager
def telling_what_is_ignored(note: Callable[[str], None] = _echo) -> Iterator[None]:
    """Tell the warnings of a generation that starts within the context.

    Args:
        note: tells a line; on stderr by default.
    """
    from kvc.runtime import (
        BegunTwice,
        SettingIgnored,
        TemplateChanged,
        UnknownAnswers,
    )

    with warnings.catch_warnings(record=True) as caught:
        for kind in (BegunTwice, SettingIgnored, TemplateChanged, UnknownAnswers):
            warnings.simplefilter("always", kind)
        yield
    for warning in caught:
        note(f"warning: {warning.message}")
