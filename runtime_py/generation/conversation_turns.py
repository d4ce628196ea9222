"""`Turns`: what happens at each turn of a conversation; the base of `Conversation`.

In: messages, pictures. Out: an answer in pieces; afterwards the messages of both, and
the tokens that the session holds.
"""

from collections.abc import Generator, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING
from weakref import ref

from kvc.runtime.generation import Arguments, Generation, generate, settings_of
from kvc.runtime.generation.conversation_held import Held
from kvc.runtime.generation.conversation_reply import Reply, form_for, showing
from kvc.runtime.generation.conversation_script import Script, Shown, Turn
from kvc.runtime.generation.conversation_start import said_of
from kvc.runtime.generation.preparing import pictures_of, prepared
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import Message
from kvc.runtime.tokenizers.reply_parser import Piece
from kvc.schema.errors import Closed, Forked

if TYPE_CHECKING:
    from kvc.runtime.embedding.parts import InParts
    from kvc.runtime.embedding.pictures import Picture


class Turns:
    """The turns of a conversation.

    Attributes:
        messages, answer: as in `Conversation`.
    """

    def __init__(
        self,
        script: Script,
        held: Held,
        system: str | Message | None,
        settings: Arguments,
        stacklevel: int,
    ) -> None:
        """Begin with the system message, or none.

        Args:
            script: turns messages into tokens.
            held: the content of the session.
            system: the system message.
            settings: the settings of all answers.
            stacklevel: the stack level of warnings, 1 for the caller of this function.

        Raises:
            BadSetting: a setting is impossible.

        Warns:
            SettingIgnored, UnknownAnswers: as `Conversation`.
        """
        self.answer: Generation | None = None
        self._script, self._held, self._system = script, held, system
        self._form = form_for(script, stacklevel + 1)
        self._tokenizer = showing(script.tokenizer, self._form)
        self._reply: Reply | None = None
        metadata = held.session.metadata
        stops = list(settings_of(metadata, settings, stacklevel + 1).stop_tokens)
        if script.template is not None:
            stops += script.template.end_tokens(script.tokenizer)
        settings.pop("eos_token_id", None)  # another name of stop_tokens
        self._settings = settings
        self._settings["stop_tokens"] = tuple(dict.fromkeys(stops))
        self._marks = count(1)
        self._pictures: list[Shown] = []  # the pictures of earlier turns
        self._text: list[int] = []  # without a template: all tokens of the text
        # A weak reference to the last answer's pieces: dropping the iterator ends it.
        self._open: ref[Generator[Piece]] | None = None
        self._say_system()

    @property
    def session(self) -> Session:
        """Return the session of the conversation."""
        return self._held.session

    def _say_system(self) -> None:
        """Set the list of messages to the system message alone."""
        self.messages: list[Message] = []
        if isinstance(self._system, str):
            self.messages.append(self._script.message("system", self._system))
        elif self._system is not None:
            self.messages.append(self._system)

    def _answered(
        self,
        said: str | Sequence[Message],
        images: "Sequence[Picture | InParts]",
    ) -> Generator[Piece]:
        """Return an iterator over the pieces of the answer; nothing has run yet.

        Raises:
            KvcError: as `Conversation.say`.
        """
        self._end_open()
        (listed,) = pictures_of(images, None)
        made = prepared(self.session, self._script.places, listed)
        shown = [*self._pictures, *(Shown(-next(self._marks), one) for one in made)]
        turn = self._turn(said, len(made), shown)
        common = self._held.keep_common(turn.marked)
        left = [one.picture for one in shown if one.mark not in turn.marked[:common]]
        self.answer = generate(
            self.session,
            turn.tokens[common:],
            images=left,
            tokenizer=self._tokenizer,
            history=turn.tokens[:common],
            **self._settings,
        )
        self._held.keep_at(self._place_of_copy(turn, common))
        pieces = self._run(self.answer, turn)
        self._open = ref(pieces)
        return pieces

    def _place_of_copy(self, turn: Turn, common: int) -> int | None:
        """Return where the states are to be copied, None where they need not be.

        It is where the next turn will differ, as where it leaves out the reasoning of
        the answer; or the end of the prompt, if the next turn differs earlier.
        """
        if self._script.template is None or not self._held.needs_copies:
            return None
        if turn.shown:
            return len(turn.tokens)
        shared = self._script.shared_by_next(turn, self.messages)
        return shared if shared > common else len(turn.tokens)

    def _turn(
        self, said: str | Sequence[Message], pictures: int, shown: Sequence[Shown]
    ) -> Turn:
        """Return the turn of new messages.

        Args:
            said: the text of the user, or messages.
            pictures: the number of new pictures.
            shown: all pictures of the conversation.
        """
        script, new = self._script, said_of(said, self._script.template)
        if script.template is None:
            return script.continued(self._text, str(said), shown, pictures)
        if isinstance(said, str):
            new = [script.message("user", said, pictures)]
        return script.turn(self.messages, new, shown)

    def _end_open(self) -> None:
        """End an unfinished answer, and record the tokens that the session holds."""
        pieces = None if self._open is None else self._open()
        if pieces is not None:
            pieces.close()

    def _run(self, answer: Generation, turn: Turn) -> Generator[Piece]:
        self._reply = reply = Reply(self._script, self._form, turn)
        try:
            yield from reply.pieces(answer)
        finally:
            answer.close()
            self._forget_copy()
            self._held.settle(answer, [*turn.marked, *answer.tokens])
            if answer.tokens or answer.reason is not None:
                self._note(turn, reply, answer.tokens)

    def _forget_copy(self) -> None:
        with suppress(Closed, Forked):
            self._held.keep_at(None)

    def _note(self, turn: Turn, reply: Reply, made: Sequence[int]) -> None:
        self._pictures = list(turn.shown)
        if self._script.template is None:
            self._text = [*turn.tokens, *made]
        else:
            self.messages += [*turn.said, reply.message(self.messages)]
