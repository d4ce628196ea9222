"""`kvc chat`: talk with the model in a bundle.

The loop asks, answers and reports the speed until the user ends it. Ctrl-C while the
model answers ends that answer after the next token; a second Ctrl-C ends it at once,
even within a token or a long prompt. At the prompt Ctrl-C ends the chat, as the end of
input does. Tests replace the terminal.
"""

import json
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import click

from kvc.tools.chat_options import TemplateGiven, template_options
from kvc.tools.chat_sessions import conversation_of, saving
from kvc.tools.generation_options import (
    form_options,
    generation_options,
)
from kvc.tools.numbers import WholeNumber
from kvc.tools.options import Loading, loading_options, open_program

if TYPE_CHECKING:
    from kvc.runtime import Conversation, Generation
    from kvc.runtime.embedding.parts import InParts
    from kvc.runtime.generation import Arguments
    from kvc.runtime.tokenizers.reply_parser import Piece

_COMMANDS = (
    "/reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer"
)
_TOOLS = "/tool TEXT gives the result of the call of a tool"
_PICTURES = "/image FILE shows a picture with the next message"


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
    message, /help lists these commands.

    Where the context is full, an answer ends; with --on-full drop, the oldest messages
    are no longer read, and the answer goes on.

    With --session, the chat is saved after each turn, and goes on next time.

    Reasoning goes to stderr. Calls of tools are printed after the answer, a line of
    JSON for each; /tool TEXT gives the result.

    Answers go to stdout; speed, and how much of the cache is used, to stderr.

    Example: kvc chat model.kvc --system "Be brief."
    """
    from kvc.runtime import SettingIgnored

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
            run_chat(conversation, console, conversation.session.capacity, save=save)


def commands_of(conversation: "Conversation") -> str:
    """Return the help text of the chat's commands, those that are of use."""
    tools = [_TOOLS] if conversation.has_tools else []
    pictures = [_PICTURES] if conversation.reads_pictures else []
    return ", ".join([_COMMANDS, *tools, *pictures])


class Terminal(Protocol):
    """The terminal that the chat reads from and writes to."""

    def ask(self) -> str:
        """Return the user's next line.

        Raises:
            EOFError: the input has ended.
            KeyboardInterrupt: the user pressed Ctrl-C.
        """

    def write(self, text: str) -> None:
        """Show a piece of an answer."""

    def think(self, text: str) -> None:
        """Show a piece of an answer's reasoning."""

    def note(self, text: str) -> None:
        """Show a line that is not part of the conversation."""


@dataclass(slots=True)
class Stop:
    """Whether the user has asked for the current answer to stop."""

    asked: bool = False


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Set the `Stop` on the first Ctrl-C; raise KeyboardInterrupt on the second."""
    stop = Stop()

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def run_chat(
    conversation: "Conversation",
    terminal: Terminal,
    capacity: int | None,
    stops: Callable[[], AbstractContextManager[Stop]] = stop_on_interrupt,
    save: Callable[[], None] = lambda: None,
) -> None:
    """Talk until the user ends it.

    Args:
        conversation: conversation to continue.
        terminal: terminal to read from and write to.
        capacity: greatest number of tokens that the session can hold, None for no
            limit.
        stops: makes a context whose `Stop` says whether the answer made in it must
            stop.
        save: saves the conversation, after each change of it.

    Raises:
        KvcError: the bundle or the session has become unusable.
    """
    images: list[InParts] = []
    answer = partial(_answer, conversation, terminal, capacity, stops)
    while True:
        try:
            said = terminal.ask()
        except (EOFError, KeyboardInterrupt):
            return
        word = said.strip()
        match word.split(maxsplit=1)[0] if word else "":
            case "/image":
                images += _picture(conversation, terminal, word[len("/image") :])
                continue
            case "/tool":
                result = word[len("/tool") :].strip()
                kept = answer(partial(conversation.say_tool, result))
            case "/quit" | "/exit" if word[1:].isalpha():
                return
            case _ if word[:1] == "/" and word[1:].isalpha():
                kept = _command(conversation, terminal, word)
            case "" if conversation.is_chat:
                continue
            case _:  # a path is said, too
                kept = answer(partial(conversation.say, said, images))
        if kept:
            images.clear()
            save()


def _command(conversation: "Conversation", terminal: Terminal, command: str) -> bool:
    """Do what a command of one word asks; tell whether the conversation has changed."""
    if command == "/reset":
        conversation.reset()
        terminal.note("a new conversation")
        return True
    unknown = "" if command == "/help" else f"there is no {command}; "
    terminal.note(unknown + commands_of(conversation))
    return False


def _picture(
    conversation: "Conversation", terminal: Terminal, path: str
) -> "list[InParts]":
    """Return the picture in a file; if it cannot be read, print why and return none."""
    from kvc.runtime import BadPicture, BadSetting, FileProblem, MissingPackage

    file = Path(path.strip()).expanduser()
    if not path.strip():
        terminal.note("/image needs the name of a file")
        return []
    try:
        made = conversation.picture(file)
    except (BadPicture, BadSetting, FileProblem, MissingPackage) as error:
        terminal.note(str(error))
        return []
    terminal.note(f"{file} goes with the next message")
    return [made]


def _answer(
    conversation: "Conversation",
    terminal: Terminal,
    capacity: int | None,
    stops: Callable[[], AbstractContextManager[Stop]],
    begin: "Callable[[], Generator[Piece]]",
) -> bool:
    """Show the answer to a message; tell whether the conversation keeps both.

    It does if the answer has at least one token, or has ended.
    """
    from kvc.runtime import (
        BadChatTemplate,
        BadSetting,
        CacheOverflow,
        InputMismatch,
        TemplateLimit,
    )

    before, dropped, stopped = conversation.answer, conversation.dropped, False
    try:
        with stops() as stop, closing(begin()) as pieces:
            shown = Shown(terminal)
            for piece in pieces:
                shown.show(piece)
                if stop.asked:
                    break
        stopped = stop.asked
    except KeyboardInterrupt:
        stopped = True
    except CacheOverflow as error:
        terminal.note(f"{error}. /reset begins a new conversation")
    except (BadChatTemplate, BadSetting, InputMismatch, TemplateLimit) as error:
        terminal.note(str(error))
    if conversation.answer is None or conversation.answer is before:
        return False
    answer = conversation.answer
    kept = bool(answer.tokens) or answer.reason is not None
    terminal.write((_calls(conversation) if kept else "") + "\n")
    for problem in conversation.problems:
        terminal.note(problem)
    terminal.note(_figures(conversation, answer, capacity))
    if conversation.dropped > dropped:
        terminal.note(_dropped(conversation))
    terminal.note(_end(answer, stopped))
    return kept


class Shown:
    """What of an answer has been shown: reasoning, then its text; calls come last."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal, self._thinks = terminal, False

    def show(self, piece: "Piece") -> None:
        """Show a piece, on a line of its own where reasoning ends."""
        if piece.part == "reasoning_content":
            self._terminal.think(piece)
            self._thinks = True
            return
        if self._thinks:
            self._terminal.think("\n")
            self._thinks = False
        if piece.part == "content":
            self._terminal.write(piece)


def _calls(conversation: "Conversation") -> str:
    """Return the calls of tools in the last answer, a line of JSON for each."""
    last = conversation.messages[-1] if conversation.messages else {}
    calls = last.get("tool_calls")
    lines = [json.dumps(one, ensure_ascii=False) for one in calls or ()]  # type: ignore[attr-defined]
    before = "\n" if lines and last.get("content") else ""
    return before + "\n".join(lines)


def _figures(
    conversation: "Conversation", answer: "Generation", capacity: int | None
) -> str:
    copies = conversation.kept_nbytes
    kept = f"; copies {copies / 1e6:,.1f} MB" if copies else ""
    prefill, decode = answer.prefill, answer.decode
    limit = "" if capacity is None else f" of {capacity:,}"
    return (
        f"[{len(answer.tokens)} tokens, {decode.tokens_per_second:.1f} tokens/s; "
        f"prompt {prefill.tokens} tokens, {prefill.tokens_per_second:.1f} tokens/s; "
        f"context {conversation.used:,}{limit}{kept}]"
    )


def _dropped(conversation: "Conversation") -> str:
    """Return what was done to make room."""
    count, again = conversation.dropped, conversation.read_again
    messages = "first message is" if count == 1 else f"first {count} messages are"
    return f"the {messages} no longer read; {again:,} tokens were read again"


def _end(answer: "Generation", stopped: bool) -> str:
    """Return why an answer ended unexpectedly, "" for an ordinary end."""
    if answer.reason == "length":
        return "the cache is full; /reset begins a new conversation"
    if answer.reason == "max_tokens":
        return "the limit of tokens was reached"
    return "stopped" if stopped else ""


class Console:
    """The terminal of this process: answers go to stdout, other lines to stderr."""

    def __init__(self) -> None:
        """Let bytes that are no valid text pass through stdin and stdout."""
        self._prompt = "> " if sys.stdin.isatty() else ""
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
