"""Options of commands that generate text.

A command decorated with `generation_options` gets one argument `settings`, which says
how to choose tokens and when to stop, for `kvc.runtime.generate`; settings that the
user leaves out are the bundle's. With `form_options` above it, `settings` also says
which form answers have.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from kvc.runtime.generation import Arguments

_SHARE = click.FloatRange(min=0, max=1)
_Option = Callable[[Callable[..., None]], Callable[..., None]]

_CHOICE: Final = {
    "max_tokens": click.option(
        "--max-tokens",
        "-n",
        type=click.IntRange(min=0),
        metavar="N",
        help="Stop after N tokens.  [default: the bundle's setting, or no limit]",
    ),
    "min_new_tokens": click.option(
        "--min-tokens",
        "min_new_tokens",
        type=click.IntRange(min=0),
        metavar="N",
        help="The model does not end the text before N tokens.",
    ),
    "temperature": click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        metavar="T",
        help="Sampling temperature; 0 always takes the likeliest token.  [default: the "
        "bundle's setting, or 0]",
    ),
    "top_k": click.option(
        "--top-k",
        type=click.IntRange(min=0),
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
        type=click.FloatRange(min=0, min_open=True),
        metavar="R",
        help="Above 1: tokens that were there before become less likely.",
    ),
    "frequency_penalty": click.option(
        "--frequency-penalty",
        type=float,
        metavar="B",
        help="Taken off a token's logit for each time that the answer has it.",
    ),
    "presence_penalty": click.option(
        "--presence-penalty",
        type=float,
        metavar="B",
        help="Taken off the logits of tokens that the answer has.",
    ),
    "no_repeat_ngram_size": click.option(
        "--no-repeat-ngram",
        "no_repeat_ngram_size",
        type=click.IntRange(min=0),
        metavar="N",
        help="No N tokens follow each other twice.",
    ),
    "seed": click.option(
        "--seed",
        type=click.IntRange(min=0),
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
        type=click.IntRange(min=0),
        metavar="TOKEN",
        help="The token after the first, such as the language to translate into, of a "
        "model with an encoder.  [default: the bundle's setting]",
    ),
}
_FILES: Final = ("json_schema", "grammar")
_FORM: Final = {
    "json_schema": click.option(
        "--json-schema",
        metavar="FILE",
        help="The answer is JSON of the JSON Schema in FILE (kvc[grammar]).",
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
        help="The answer follows the grammar in FILE, in Lark's notation or GBNF.",
    ),
}


def generation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for generation to a command, which gets them as `settings`."""

    def settings_of(given: dict[str, Any]) -> "Arguments":
        settings: Arguments = given.pop("settings", {})
        for name in _CHOICE:
            found = given.pop(name)
            settings[name] = found if found != () else None  # type: ignore[literal-required]
        return settings

    return _with_settings(command, list(_CHOICE.values()), settings_of)


def form_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the form of answers to a command with generation options."""

    def settings_of(given: dict[str, Any]) -> "Arguments":
        settings: Arguments = {}
        for name in _FORM:
            found = given.pop(name)
            if found is not None and name in _FILES:
                found = _text_of(found, f"--{name.replace('_', '-')}")
            settings[name] = found if found != () else None  # type: ignore[literal-required]
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


def _text_of(path: str, option: str) -> str:
    """Return the text in a file.

    Raises:
        click.BadParameter: the file cannot be read, or is not UTF-8.
    """
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint=option) from error


@contextmanager
def telling_what_is_ignored() -> Iterator[None]:
    """Print on stderr the warnings of a generation that starts within the context."""
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
        click.echo(f"warning: {warning.message}", err=True)
