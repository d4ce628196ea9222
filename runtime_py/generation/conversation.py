"""`Conversation`: a chat on one session, which runs only the new tokens of each turn.

In: a session, its bundle's tokenizer and chat template, what the user says. Out: the
answers in pieces. Before each answer the whole conversation is rendered and encoded
again. The session keeps the tokens that are still the same; at the first difference it
is rewound, or reset if it cannot be rewound. Without a chat template, the text is
continued. Pictures are kept as the model takes them, as long as they belong to what was
said: the session may have to read them again.
"""

from collections.abc import Generator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, Unpack
from weakref import ref

from kvc.runtime.embedding.parts import InParts
from kvc.runtime.generation import (
    Arguments,
    Generation,
    check_session,
    generate,
    settings_of,
)
from kvc.runtime.generation.conversation_start import held_of, system_of
from kvc.runtime.generation.encoding import check_goes_on
from kvc.runtime.generation.picture_places import places_of
from kvc.runtime.generation.preparing import pictures_of, prepared
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import ChatTemplate, Message, Tokenizer
from kvc.schema.errors import (
    BadChatTemplate,
    CannotRewind,
    Closed,
    NoPosition,
    NotRewindable,
    Poisoned,
)
from kvc.schema.frozen import frozen

if TYPE_CHECKING:
    from kvc.runtime.embedding.pictures import Picture

_IMAGE: Final = {"type": "image"}  # as templates know a picture


@frozen
class _Shown:
    """A picture of a conversation.

    Attributes:
        mark: what stands in its places, where tokens are compared; no other has it.
        picture: as the model takes it.
    """

    mark: int
    picture: InParts


@frozen
class _Turn:
    """What an answer is to.

    Attributes:
        said: what the user says.
        tokens: of all that was said, up to where the answer begins.
        marked: the same with marks of pictures.
        shown: all pictures of it.
    """

    said: Message
    tokens: Sequence[int]
    marked: Sequence[int]
    shown: Sequence[_Shown]


class Conversation:
    """A chat with a model on one session.

    Attributes:
        messages: what was said; a text that is continued has none. Their content is a
            text, or of a model that reads pictures a list of parts, where its template
            takes such.
        answer: the generation of the last answer, None before.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        system: str | None = None,
        messages: Sequence[Message] = (),
        history: Sequence[int] | None = None,
        **settings: Unpack[Arguments],
    ) -> None:
        """Begin, or go on with what was said before.

        A session that holds tokens is taken only with `history`, since what they say is
        not known: `reset` it first to begin anew.

        Args:
            session: of a program with the roles "prefill" and "decode".
            tokenizer: the bundle's.
            template: the bundle's; None to continue a text.
            system: what the model is told before anything is said.
            messages: what was said before, as `Conversation.messages` had it, with the
                system message.
            history: the tokens that the session holds, as `Conversation.held` had them.
            settings: as of `kvc.runtime.generate`; the token that ends an answer is a
                stop token in any case.

        Raises:
            BadSetting: a setting is impossible, `session` is no Session, the program
                has an encoder, or the session holds something else than `history`.
            UnknownName: the program lacks a role.
        """
        check_session(session)
        check_goes_on(session)
        held = held_of(session, history)
        self.answer: Generation | None = None
        self.messages: list[Message] = []
        self._session, self._tokenizer, self._template = session, tokenizer, template
        self._system = system_of(system, messages, template)
        stops = list(settings_of(session.metadata, settings).stop_tokens)
        if template is not None:
            stops += template.end_tokens(tokenizer)
        settings.pop("eos_token_id", None)  # another name of stop_tokens
        self._settings = settings
        self._settings["stop_tokens"] = tuple(dict.fromkeys(stops))
        self._places = places_of(session)
        self._in_parts = self._takes_parts()
        self._marks = count(1)
        self._pictures: list[_Shown] = []  # of what was said
        # What the session holds: tokens, and marks in the places of pictures.
        self._held = held
        # A text that is continued, all of it.
        self._text = [*held, *session.pending[0]] if template is None else []
        # The last answer's pieces. Nobody else may keep them: who lets go ends them.
        self._open: ref[Generator[str]] | None = None
        self._say_system()
        if messages:
            self.messages = list(messages)

    def __repr__(self) -> str:
        return f"<Conversation, {len(self.messages)} messages, on {self._session!r}>"

    @property
    def reads_pictures(self) -> bool:
        """Whether the model can be shown pictures."""
        return self._places is not None

    def picture(self, picture: "Picture") -> InParts:
        """Return a picture as the model takes it, for `say`.

        Args:
            picture: the path of a file, or a picture of Pillow.

        Raises:
            BadSetting: the program reads no pictures, or it is none.
            BadPicture, FileProblem: a file is no picture, or too large a one.
            MissingPackage: Pillow is not installed.
        """
        (listed,) = pictures_of([picture], None)
        (made,) = prepared(self._session, self._places, listed)
        return made

    def say(
        self, text: str, images: "Sequence[Picture | InParts]" = ()
    ) -> Generator[str]:
        """Return the answer to what the user says, in pieces of text as they come.

        Pictures come before the text; where the bundle's template has no place for
        them, or there is none, the text has the model's placeholder for each. The
        answer belongs to the conversation as far as it was asked for; one that
        ended before its first token leaves the conversation as it was. An answer before
        it that has not ended ends here.

        Args:
            text: what the user says.
            images: that the user shows.

        Raises:
            CacheOverflow: there is no room; the conversation is as it was.
            BadChatTemplate, TemplateLimit: the template refuses it, or takes too much;
                the same.
            KvcError: as `kvc.runtime.generate` and `Session.call`, at once or while the
                answer is made.
        """
        self._end_open()
        (listed,) = pictures_of(images, None)
        made = prepared(self._session, self._places, listed)
        shown = [*self._pictures, *(_Shown(-next(self._marks), one) for one in made)]
        said = self._message("user", text, len(made))
        tokens = self._tokens(said, text, shown)
        marked = self._marked(tokens, shown)
        common = self._keep_common(marked)
        left = [one.picture for one in shown if one.mark not in marked[:common]]
        self.answer = generate(
            self._session,
            tokens[common:],
            images=left,
            tokenizer=self._tokenizer,
            history=tokens[:common],
            **self._settings,
        )
        turn = _Turn(said, tokens, marked, shown)
        pieces = self._run(self.answer, turn)
        self._open = ref(pieces)
        return pieces

    def reset(self) -> None:
        """Forget the conversation, except the system message.

        Raises:
            Busy, Closed, Forked: as `Session.reset`.
        """
        self._end_open()
        self._forget()
        self._text, self._pictures = [], []
        self._say_system()

    @property
    def is_chat(self) -> bool:
        """Tell whether there are turns, rather than a text that is continued."""
        return self._template is not None

    @property
    def used(self) -> int:
        """Return how many tokens the session holds."""
        return len(self._held)

    @property
    def held(self) -> tuple[int, ...]:
        """Return the tokens that the session holds, negative numbers for pictures.

        With `messages` they are what goes on with a saved session, without pictures.
        """
        return tuple(self._held)

    def _say_system(self) -> None:
        """Begin the messages anew."""
        self.messages = []
        if isinstance(self._system, str):
            self.messages.append(self._message("system", self._system))
        elif self._system is not None:
            self.messages.append(self._system)

    def _takes_parts(self) -> bool:
        """Tell whether messages are lists of parts, of which a picture is one."""
        placeholder = None if self._places is None else self._places.placeholder
        if self._template is None or placeholder is None:
            return False
        parts = [_IMAGE, {"type": "text", "text": "a"}]
        try:
            text = self._template.render([{"role": "user", "content": parts}])
        except BadChatTemplate:  # it knows texts alone
            return False
        return text.count(placeholder) == 1

    def _message(self, role: str, text: str, pictures: int = 0) -> Message:
        if not self._in_parts:
            return {"role": role, "content": text}
        parts = [*[_IMAGE] * pictures, {"type": "text", "text": text}]
        return {"role": role, "content": parts}

    def _tokens(self, said: Message, text: str, shown: Sequence[_Shown]) -> list[int]:
        """Return the tokens of all that was said, up to where the answer begins."""
        if self._template is not None:
            whole = self._expanded(self._template.render([*self.messages, said]), shown)
            return list(self._tokenizer.encode(whole, special=False))
        more = self._expanded(text, shown[len(self._pictures) :])
        return [*self._text, *self._tokenizer.encode(more, special=not self._text)]

    def _expanded(self, text: str, shown: Sequence[_Shown]) -> str:
        """Return a text with all places of its pictures."""
        if self._places is None:
            return text
        return self._places.in_text(text, [one.picture.grid for one in shown])

    def _marked(self, tokens: Sequence[int], shown: Sequence[_Shown]) -> list[int]:
        """Return tokens with the marks of pictures in their places."""
        if self._places is None:
            return list(tokens)
        places = self._places
        marks = iter(
            mark
            for mark, count in (
                (one.mark, places.count_of(one.picture.grid)) for one in shown
            )
            for _ in range(count)
        )
        return [next(marks, t) if t == places.token else t for t in tokens]

    def _keep_common(self, tokens: Sequence[int]) -> int:
        """Have the session hold a beginning of marked tokens; return its length.

        At least one is left to run, since logits follow from a run, and no picture is
        left in part.
        """
        common = 0
        for one, other in zip(self._held, tokens[:-1], strict=False):
            if one != other:
                break
            common += 1
        mark = next((one for one in reversed(tokens[:common]) if one < 0), None)
        if mark is not None and mark in tokens[common:]:
            common = tokens.index(mark)
        try:
            self._session.check_usable()
            if common < len(self._held):
                self._session.rewind(len(self._held) - common)
        except (NoPosition, NotRewindable, CannotRewind, Poisoned):
            self._forget()
            return 0
        del self._held[common:]
        return common

    def _end_open(self) -> None:
        """End an answer that was left open: what it ran on the session is noted."""
        pieces = None if self._open is None else self._open()
        if pieces is not None:
            pieces.close()

    def _forget(self) -> None:
        self._session.reset()
        self._held = []

    def _run(self, answer: Generation, turn: _Turn) -> Generator[str]:
        pieces: list[str] = []
        try:
            for piece in answer.text():
                shown = piece if pieces else self._without_first_space(piece, answer)
                pieces.append(shown)
                if shown:
                    yield shown
        finally:
            answer.close()
            self._settle(answer, [*turn.marked, *answer.tokens])
            if answer.tokens or answer.reason is not None:
                self._note(turn, "".join(pieces), answer.tokens)

    def _settle(self, answer: Generation, tokens: Sequence[int]) -> None:
        """Note how many of some tokens the session holds after an answer."""
        try:
            self._held = list(tokens[: int(self._session.position[0])])
        except NoPosition:
            if answer.reason is None:  # nobody knows what an answer left behind
                self._forget()
                return
            # A stop token is pending, too, but not among the tokens.
            pending = len(answer.pending) - (answer.reason == "stop")
            self._held = list(tokens[: len(tokens) - pending])
        except (Closed, Poisoned):
            self._held = []

    def _without_first_space(self, piece: str, answer: Generation) -> str:
        """Return a piece without the space that is there only after the prompt."""
        if self._template is None or not piece.startswith(" "):
            return piece
        stream = self._tokenizer.stream()
        alone = "".join(map(stream.push, answer.tokens)) + stream.finish()
        return piece if alone.startswith(" ") else piece[1:]

    def _note(self, turn: _Turn, answer: str, made: Sequence[int]) -> None:
        self._pictures = list(turn.shown)
        if self._template is None:
            self._text = [*turn.tokens, *made]
        else:
            self.messages += [turn.said, self._message("assistant", answer)]
