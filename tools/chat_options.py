"""Options of `kvc chat` for what the model is told: tools, variables, which turns.

A command decorated with `template_options` gets one argument `given`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import reason_of

if TYPE_CHECKING:
    from kvc.runtime.generation.conversation_room import OnFull


@dataclass(frozen=True, slots=True)
class TemplateGiven:
    """What the user gives to the chat template, and asks of its turns.

    Attributes:
        tools: JSON schemas of the tools that the model may call, None for none.
        arguments: more variables of the template.
        special_tokens: what names of special tokens in messages become, "tokens" or
            "text"; None for the default.
        on_full: what happens where the context is full, "stop", "drop" or "sinks";
            None for the default.
    """

    tools: Sequence[Mapping[str, object]] | None
    arguments: Mapping[str, object]
    special_tokens: str | None = None
    on_full: "OnFull | None" = None

    @property
    def options(self) -> tuple[str, ...]:
        """Return the names of the options that were given."""
        tools = ("--tools",) if self.tools is not None else ()
        arguments = ("--template-argument",) if self.arguments else ()
        names = ("--special-tokens",) if self.special_tokens == "text" else ()
        on_full = ("--on-full",) if self.on_full == "drop" else ()
        return (*tools, *arguments, *names, *on_full)


def template_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the chat template to a command, which gets `given`."""

    @click.option(
        "--tools",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE.json",
        help="The tools that the model may call, a list of JSON schemas, "
        "as OpenAI's API takes it.",
    )
    @click.option(
        "--template-argument",
        "arguments",
        metavar="NAME=JSON",
        multiple=True,
        help="A variable of the chat template, as enable_thinking=false. Repeatable.",
    )
    @click.option(
        "--special-tokens",
        type=click.Choice(["tokens", "text"]),
        help="What names of special tokens in messages become; text, so that a message "
        "cannot forge turns.  [default: tokens]",
    )
    @click.option(
        "--on-full",
        type=click.Choice(["stop", "drop", "sinks"]),
        help="What happens where the context is full: the answer ends; the oldest "
        "messages are no longer read; or it never is, with a bundle of kvc compile "
        "--window N --keep K.  [default: stop]",
    )
    @wraps(command)
    def with_given(
        tools: Path | None,
        arguments: tuple[str, ...],
        special_tokens: str | None,
        on_full: "OnFull | None",
        **others: object,
    ) -> None:
        given = TemplateGiven(
            None if tools is None else tools_in(tools),
            named_values(arguments),
            special_tokens,
            on_full,
        )
        command(given=given, **others)

    return with_given


def tools_in(path: Path) -> list[Mapping[str, object]]:
    """Return the tools in a JSON file: a list of schemas, or a single one.

    Raises:
        click.BadParameter: the file cannot be read, or holds something else.
    """
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise _bad_tools(f"{path}: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise _bad_tools(f"{path}: it is not JSON: {error}") from error
    if isinstance(found, dict) and isinstance(found.get("function"), dict):
        return [found]
    if not isinstance(found, list) or not all(map(_is_tool, found)):
        raise _bad_tools(
            f"{path}: expected a list of tools, each "
            '{"type": "function", "function": {"name": ..., "description": ..., '
            '"parameters": ...}}'
        )
    return found


def _is_tool(found: object) -> bool:
    """Tell whether something describes a tool; the inner object alone does, too."""
    if not isinstance(found, dict):
        return False
    function = found.get("function", found)
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _bad_tools(reason: str) -> click.BadParameter:
    return click.BadParameter(reason, param_hint="--tools")


def named_values(arguments: Sequence[str]) -> dict[str, object]:
    """Parse values of `--template-argument`, each NAME=JSON.

    Raises:
        click.BadParameter: a value is not of this form, or a name occurs twice.
    """
    found: dict[str, object] = {}
    for text in arguments:
        name, _, value = text.partition("=")
        try:
            if not name or name in found:
                raise ValueError
            found[name] = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise click.BadParameter(
                "expected NAME=JSON, as enable_thinking=false or "
                f"""date='"1 May"', each name once, found {text!r}""",
                param_hint="--template-argument",
            ) from error
    return found
