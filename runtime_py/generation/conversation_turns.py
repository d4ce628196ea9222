"""`Turns`: what happens at each turn of a conversation; the base of `Conversation`.

In: messages, pictures. Out: an answer in pieces; afterwards the messages of both, and
the tokens that the session holds.
"""

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count as counted
from typing import TYPE_CHECKING
from weakref import ref

from kvc.runtime.generation import Arguments, Generation, generate, settings_of
from kvc.runtime.generation.conversation_held import Held
from kvc.runtime.generation.conversation_reply import Reply, form_for, showing
from kvc.runtime.generation.conversation_room import OnFull, Room, without
from kvc.runtime.generation.conversation_script import Script, Shown, Turn
from kvc.runtime.generation.conversation_start import check_read, said_of
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
        on_full: OnFull,
        stacklevel: int,
    ) -> None:
        """Begin with the system message, or none.

        Args:
            script: turns messages into tokens.
            held: the content of the session.
            system: the system message.
            settings: the settings of all answers.
            on_full: as in `Conversation`.
            stacklevel: the stack level of warnings, 1 for the caller of this function.

        Raises:
            BadSetting: a setting is impossible, or `on_full`.

        Warns:
            SettingIgnored, UnknownAnswers: as `Conversation`.
        """
        self.answer: Generation | None = None
        self._script, self._held, self._system = script, held, system
        self._form = form_for(script, stacklevel + 1)
        self._tokenizer = showing(script.tokenizer, self._form)
        self._reply: Reply | None = None
        metadata = held.session.metadata
        combined = settings_of(metadata, settings, stacklevel + 1)
        self._room = Room(script, held.session, on_full, combined.max_tokens)
        stops = list(combined.stop_tokens)
        if script.template is not None:
            stops += script.template.end_tokens(script.tokenizer)
        settings.pop("eos_token_id", None)  # another name of stop_tokens
        self._settings = settings
        self._settings["stop_tokens"] = tuple(dict.fromkeys(stops))
        self._marks = counted(1)
        self._pictures: list[Shown] = []  # the pictures of earlier turns
        self._text: list[int] = []  # without a template: all tokens of the text
        self._now: Turn  # the turn of the last answer, as it was read
        # A weak reference to the last answer's pieces: dropping the iterator ends it.
        self._open: ref[Generator[Piece]] | None = None
        self._say_system()

    @property
    def session(self) -> Session:
        """Return the session of the conversation."""
        return self._held.session

    def _say_system(self) -> None:
        """Set the list of messages to the system message alone."""
        self._room.dropped = self._room.read_again = 0
        self.messages: list[Message] = []
        if isinstance(self._system, str):
            self.messages.append(self._script.message("system", self._system))
        elif self._system is not None:
            self.messages.append(self._system)

    def _answered(
        self,
        said: str | Message | Sequence[Message],
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
        whole = self._turn(said, len(made), shown)
        turn = self._room.fitting(self.messages, whole)
        new = len(whole.tokens) - self._held.common(whole.marked)
        self.answer, count = self._begun(turn)
        more = turn.dropped > whole.dropped
        self._room.read_again = max(0, count - new) if more else 0
        pieces = self._run(self.answer, turn)
        self._open = ref(pieces)
        return pieces

    def _begun(self, turn: Turn) -> tuple[Generation, int]:
        """Rewind the session for a turn; return its answer, and how many tokens to run.

        Raises:
            KvcError: as `generate`.
        """
        common = self._held.keep_common(turn.marked)
        kept = frozenset(turn.marked[:common])
        answer = generate(
            self.session,
            turn.tokens[common:],
            images=[one.picture for one in turn.shown if one.mark not in kept],
            tokenizer=self._tokenizer,
            history=turn.tokens[:common],
            **self._settings,
        )
        self._held.keep_at(self._place_of_copy(turn, common))
        return answer, len(turn.tokens) - common

    def _make_room(self, answer: Generation) -> Generation | None:
        """Leave out old turns of a full session; return what continues the answer.

        None if nothing more can be left out. What is returned has run nothing.
        """
        tokens, pending = answer.tokens, len(answer.pending)
        turn = self._room.again(self.messages, self._now, len(tokens))
        if turn is None:
            return None
        self._held.settle(answer, [*self._now.marked, *tokens])
        made, count = self._begun(turn)
        self._now = turn
        self._room.read_again += count + len(tokens) - pending
        return made

    def _place_of_copy(self, turn: Turn, common: int) -> int | None:
        """Return where the states are to be copied, None where they need not be.

        It is where the next turn will differ, as where it leaves out the reasoning of
        the answer; or the end of the prompt, if the next turn differs earlier.
        """
        if self._script.template is None or not self._held.needs_copies:
            return None
        if turn.shown:
            return len(turn.tokens)
        before = without(self.messages, turn.dropped)
        shared = self._script.shared_by_next(turn, before)
        return shared if shared > common else len(turn.tokens)

    def _turn(
        self,
        said: str | Message | Sequence[Message],
        pictures: int,
        shown: Sequence[Shown],
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
        made = script.turn(self._room.read(self.messages), new, shown)
        check_read(new, made.text)
        return replace(made, dropped=self._room.dropped)

    def _end_open(self) -> None:
        """End an unfinished answer, and record the tokens that the session holds."""
        pieces = None if self._open is None else self._open()
        if pieces is not None:
            pieces.close()

    def _run(self, answer: Generation, turn: Turn) -> Generator[Piece]:
        self._reply = reply = Reply(self._script, self._form, turn)
        self._now = turn
        drops = self._room.on_full == "drop"
        if drops:
            answer.when_full(self._make_room)
        try:
            yield from reply.pieces(answer)
        finally:
            answer.close()
            if drops:  # a cycle of references would keep the session
                answer.when_full(None)
            self._forget_copy()
            self._held.settle(answer, [*self._now.marked, *answer.tokens])
            if answer.tokens or answer.reason is not None:
                self._note(self._now, reply, answer.tokens)

    def _forget_copy(self) -> None:
        with suppress(Closed, Forked):
            self._held.keep_at(None)

    def _note(self, turn: Turn, reply: Reply, made: Sequence[int]) -> None:
        self._pictures, self._room.dropped = list(turn.shown), turn.dropped
        if self._script.template is None:
            self._text = [*turn.tokens, *made]
        else:
            self.messages += [*turn.said, reply.message(self.messages)]
