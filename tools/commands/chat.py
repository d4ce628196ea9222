"""`kvc chat`: talk with the model in a bundle, on the terminal of this process."""

import json
import sys
import warnings
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvc.tools.chat_loop import commands_of, run_chat
from kvc.tools.chat_options import TemplateGiven, template_options
from kvc.tools.chat_sessions import conversation_of, saving
from kvc.tools.generation_options import (
    form_options,
    generation_options,
)
from kvc.tools.numbers import WholeNumber
from kvc.tools.options import Loading, loading_options, open_program
from kvc.tools.printing import BAD

if TYPE_CHECKING:
    from kvc.runtime.generation import Arguments


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.option("--system", metavar="TEXT", help="The system message.")
@click.option(
    "--session",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the chat in FILE, and go on with the one that is in it.",
)
@click.option(
    "--turns",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the chat template as fixed texts to FILE, for libkvc, and end.",
)
@template_options
@form_options
@generation_options
@click.option(
    "--capacity",
    type=WholeNumber(min=1),
    metavar="N",
    help="How many tokens the conversation may have.  [default: the most the bundle "
    "allows]",
)
@loading_options
def chat(
    bundle: str,
    system: str | None,
    file: Path | None,
    turns: Path | None,
    given: TemplateGiven,
    settings: "Arguments",
    capacity: int | None,
    loading: Loading,
) -> None:
    """Chat with the model in BUNDLE.

    Each line of input is a message. The bundle's chat template turns the conversation
    into text; without one, the model continues the text typed so far. Ctrl-C stops an
    answer; at the prompt, Ctrl-C, Ctrl-D or /quit ends the chat. /reset forgets the
    conversation, /image FILE shows a model that reads pictures one with the next
    message, /help lists these commands. //TEXT says /TEXT, whatever it begins with.

    Where the context is full, an answer ends; with --on-full drop, the oldest messages
    are no longer read, and the answer goes on.

    With --session, the chat is saved after each turn, and goes on next time, with its
    settings unless they are given anew. The form of answers and --max-tokens are of one
    command, and do not stay. `kvc dump FILE` shows the settings.

    The exit code is 1 where stdin is no terminal and a line of it was refused.

    Reasoning goes to stderr. Calls of tools are printed after the answer, a line of
    JSON for each; /tool TEXT gives the result.

    Answers go to stdout; speed, and how much of the cache is used, to stderr.

    Example: kvc chat model.kvc --system "Be brief."
    """
    from kvc.runtime import SettingIgnored

    if turns is not None:
        _write_turns(bundle, turns, loading)
        return
    with (
        open_program(bundle, loading) as program,
        conversation_of(
            program, capacity, file, system, given, settings
        ) as conversation,
    ):
        program.pack()
        console = Console()
        console.note(commands_of(conversation))
        save = saving(conversation, file, console.note)
        # What has been said at the beginning is not said again.
        with warnings.catch_warnings(action="ignore", category=SettingIgnored):
            capacity = conversation.session.capacity
            all_answered = run_chat(conversation, console, capacity, save=save)
    if not all_answered and not console.is_terminal:
        raise click.exceptions.Exit(BAD)


def _write_turns(bundle: str, file: Path, loading: Loading) -> None:
    """Write a bundle's chat template as texts around messages.

    Raises:
        KvcError: as `turns_of` and `chat_template_of`.
        click.UsageError: the bundle has no chat template.
    """
    from kvc.runtime.generation import settings_of
    from kvc.runtime.tokenizers import chat_template_of, tokenizer_of
    from kvc.runtime.tokenizers.chat_turns import turns_of

    with open_program(bundle, loading) as program:
        template, tokenizer = chat_template_of(program), tokenizer_of(program)
        if template is None:
            raise click.UsageError("the bundle has no chat template")
        stops = settings_of(program.metadata, {}).stop_tokens
        stops += template.end_tokens(tokenizer)
        made = turns_of(template, tuple(dict.fromkeys(stops)))
    file.write_text(json.dumps(made, indent=1) + "\n")


class Console:
    """The terminal of this process: answers go to stdout, other lines to stderr."""

    def __init__(self) -> None:
        """Let bytes that are no valid text pass through stdin and stdout.

        A line with such bytes is refused later, unless the model reads bytes.
        """
        self.is_terminal = sys.stdin.isatty()
        self._prompt = "> " if self.is_terminal else ""
        if self._prompt:
            import readline  # noqa: F401  gives input() a line that can be edited
        for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors=errors)

    def ask(self) -> str:
        """Read a line from stdin; at its end, end the prompt's line on a terminal."""
        try:
            return input(self._prompt)
        except (EOFError, KeyboardInterrupt):
            if self._prompt:
                click.echo(err=True)
            raise

    def write(self, text: str) -> None:
        """Write to stdout at once."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def think(self, text: str) -> None:
        """Write to stderr at once."""
        click.echo(text, err=True, nl=False)

    def note(self, text: str) -> None:
        """Write a line to stderr."""
        if text:
            click.echo(text, err=True)
