"""`kvc chat`: talk with the model in a bundle."""

import warnings
from typing import TYPE_CHECKING

import click

from kvc.tools.loading import Loading, loading_options, open_program
from kvc.tools.sampling import generation_options, telling_what_is_ignored

if TYPE_CHECKING:
    from kvc.runtime import Conversation, Program, Session
    from kvc.runtime.generation import Arguments


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.option("--system", metavar="TEXT", help="The system message.")
@generation_options
@click.option(
    "--capacity",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many tokens the conversation may have.  [default: the most the bundle "
    "allows]",
)
@loading_options
def chat(
    bundle: str,
    system: str | None,
    settings: "Arguments",
    capacity: int | None,
    loading: Loading,
) -> None:
    """Chat with the model in BUNDLE.

    Each line of input is a message. The bundle's chat template turns the conversation
    into text; without one, the model continues the text typed so far. Ctrl-C stops an
    answer; at the prompt, Ctrl-C, Ctrl-D or /quit ends the chat. /reset forgets the
    conversation, /image FILE shows a model that reads pictures one with the next
    message, /help lists these commands.

    Answers go to stdout; speed, and how much of the cache is used, to stderr.

    Example: kvc chat model.kvc --system "Be brief."
    """
    from kvc.tools.chatting import Console, commands_of, run_chat

    with (
        open_program(bundle, loading) as program,
        program.session(capacity=capacity) as session,
    ):
        conversation = _begin(program, session, system, settings)
        program.pack()
        console = Console()
        console.note(commands_of(conversation))
        with _unrepeated():
            run_chat(conversation, console, session.capacity)


def _begin(
    program: "Program", session: "Session", system: str | None, settings: "Arguments"
) -> "Conversation":
    """Return a conversation; what it ignores, and lacks, is said on stderr."""
    from kvc.runtime import Conversation
    from kvc.runtime.tokenizers import chat_template_of, tokenizer_of

    template = chat_template_of(program)
    if template is None:
        note = "the bundle has no chat template: the model continues what you write"
        click.echo(f"note: {note}", err=True)
        if system is not None:
            note = "--system needs a chat template, which the bundle does not have"
            raise click.UsageError(note)
    with telling_what_is_ignored():
        tokenizer = tokenizer_of(program)
        return Conversation(session, tokenizer, template, system, **settings)


def _unrepeated() -> "warnings.catch_warnings[None]":
    """Leave out what has been said at the beginning."""
    from kvc.runtime import SettingIgnored

    return warnings.catch_warnings(action="ignore", category=SettingIgnored)
