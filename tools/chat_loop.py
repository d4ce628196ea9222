"""The loop of `kvc chat`: asks, answers and reports until the user ends it.

In: a conversation, a terminal. Out: whether all lines were answered. Ctrl-C while the
model answers ends that answer after the next token; a second Ctrl-C ends it at once,
even within a token or a long prompt. At the prompt Ctrl-C ends the chat, as the end of
input does. Tests replace the terminal.
"""

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol

from kvc.tools.chat_lines import (
    calls_of,
    dropped_of,
    end_of,
    figures_of_turn,
    refusal_of,
)
from kvc.tools.inputs import why_no_text

if TYPE_CHECKING:
    from kvc.runtime import Conversation
    from kvc.runtime.embedding.parts import InParts
    from kvc.runtime.tokenizers.reply_parser import Piece

_COMMANDS = (
    "/reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer, "
    "//TEXT says /TEXT"
)
_TOOLS = "/tool TEXT gives the result of the call of a tool"
_PICTURES = "/image FILE shows a picture with the next message"
_ALONE: Final = ("/reset", "/quit", "/exit", "/help")  # commands of one word


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
) -> bool:
    """Talk until the user ends it; tell whether no line was refused.

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
    chat = _Chat(conversation, terminal, capacity, stops)
    while True:
        try:
            said = terminal.ask()
        except (EOFError, KeyboardInterrupt):
            return not chat.refused
        word = said.strip()
        if word in ("/quit", "/exit"):
            return not chat.refused
        if chat.take(said, word):
            save()


class _Chat:
    """A chat: does what each line asks.

    Attributes:
        refused: how many lines were refused.
    """

    def __init__(
        self,
        conversation: "Conversation",
        terminal: Terminal,
        capacity: int | None,
        stops: Callable[[], AbstractContextManager[Stop]],
    ) -> None:
        """Begin; the arguments are those of `run_chat`."""
        self._conversation, self._terminal = conversation, terminal
        self._capacity, self._stops = capacity, stops
        self._images: list[InParts] = []
        from kvc.runtime.tokenizers import tokenizer_of

        self._tokenizer = tokenizer_of(conversation.session)
        self.refused = 0

    def take(self, said: str, word: str) -> bool:
        """Do what a line asks; tell whether the conversation has changed.

        Args:
            said: the line.
            word: the line without white space at its ends.
        """
        conversation = self._conversation
        first = word.split(maxsplit=1)[0] if word else ""
        rest = word[len(first) :].strip()
        kept = False
        match first:
            case "/image":
                self._images += self._picture(rest)
            case "/tool":
                kept = self._say(rest, partial(conversation.say_tool, rest))
            case _ if first in _ALONE and rest:
                self._refuse(f"{first} stands alone on its line; /{word} says it")
            case _ if word[:1] == "/" and word[1:].isalpha():
                return self._command(word)
            case "" if conversation.is_chat:
                pass
            case _:  # a path is said, too
                text = _without_mark(said)
                begin = partial(conversation.say, text, self._images)
                kept = self._say(text, begin)
        if kept:
            self._images.clear()
        return kept

    def _refuse(self, why: str) -> None:
        self.refused += 1
        self._terminal.note(why)

    def _say(self, text: str, begin: "Callable[[], Generator[Piece]]") -> bool:
        """Answer a text, unless it cannot be encoded; as `take`."""
        problem = why_no_text(text, self._tokenizer)
        if problem:
            self._refuse(f"the line {problem}")
            return False
        return self._answer(begin)

    def _command(self, command: str) -> bool:
        """Do what a command of one word asks, as `take`."""
        if command == "/reset":
            self._conversation.reset()
            self._images.clear()
            self._terminal.note("a new conversation")
            return True
        if command == "/help":
            self._terminal.note(commands_of(self._conversation))
        else:
            known = commands_of(self._conversation)
            self._refuse(f"there is no {command}; {known}")
        return False

    def _picture(self, path: str) -> "list[InParts]":
        """Return the picture in a file; none if it cannot be read, which is told."""
        from kvc.runtime import BadPicture, BadSetting, FileProblem, MissingPackage

        file = Path(path).expanduser()
        if not path:
            self._refuse("/image needs the name of a file")
            return []
        try:
            made = self._conversation.picture(file)
        except (BadPicture, BadSetting, FileProblem, MissingPackage) as error:
            self._refuse(str(error))
            return []
        self._terminal.note(f"{file} goes with the next message")
        return [made]

    def _answer(self, begin: "Callable[[], Generator[Piece]]") -> bool:
        """Show the answer to a message; tell whether the conversation keeps both.

        It does if the answer has at least one token, or has ended.
        """
        conversation, terminal = self._conversation, self._terminal
        before, dropped = conversation.answer, conversation.dropped
        stopped = self._shown(begin)
        if conversation.answer is None or conversation.answer is before:
            return False
        answer = conversation.answer
        kept = bool(answer.tokens) or answer.reason is not None
        terminal.write((calls_of(conversation) if kept else "") + "\n")
        for problem in conversation.problems:
            terminal.note(problem)
        terminal.note(figures_of_turn(conversation, answer, self._capacity))
        if conversation.dropped > dropped:
            terminal.note(dropped_of(conversation))
        terminal.note(end_of(answer, stopped, conversation.on_full == "drop"))
        return kept

    def _shown(self, begin: "Callable[[], Generator[Piece]]") -> bool:
        """Show the pieces of an answer; tell whether the user has stopped it."""
        from kvc.runtime import (
            BadChatTemplate,
            BadSetting,
            CacheOverflow,
            InputMismatch,
            TemplateLimit,
        )

        try:
            with self._stops() as stop, closing(begin()) as pieces:
                shown = Shown(self._terminal)
                for piece in pieces:
                    shown.show(piece)
                    if stop.asked:
                        break
            return stop.asked
        except KeyboardInterrupt:
            return True
        except CacheOverflow as error:
            self._refuse(refusal_of(error, self._conversation.on_full == "drop"))
        except (BadChatTemplate, BadSetting, InputMismatch, TemplateLimit) as error:
            self._refuse(str(error))
        return False


def _without_mark(said: str) -> str:
    """Return a line without the slash that keeps it from being a command."""
    start = len(said) - len(said.lstrip())
    return said[start + 1 :] if said[start:].startswith("//") else said


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
