"""`Conversation`: a chat on one session, which runs only the new tokens of each turn.

In: a session, its bundle's tokenizer and chat template, the user's messages. Out: the
answers in pieces. Before each answer the whole conversation is rendered and encoded
again, and compared with the tokens that the session holds. The session is rewound to
the first difference, or reset if it cannot be rewound. Without a chat template, a
conversation is one text that each message continues. Preprocessed pictures of the
conversation stay in memory, since a reset session has to run them again.
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

_IMAGE: Final = {"type": "image"}  # a picture in the message format of templates


@frozen
class _Shown:
    """A picture of a conversation.

    Attributes:
        mark: a unique negative number that replaces the picture's tokens in
            comparisons.
        picture: the preprocessed picture.
    """

    mark: int
    picture: InParts


@frozen
class _Turn:
    """The user's message before an answer, and the tokens up to the answer.

    Attributes:
        said: the user's message.
        tokens: the tokens of the whole conversation, up to the answer.
        marked: `tokens` with the marks of pictures in place of the pictures' image
            tokens.
        shown: all pictures of the conversation.
    """

    said: Message
    tokens: Sequence[int]
    marked: Sequence[int]
    shown: Sequence[_Shown]


class Conversation:
    """A chat with a model on one session.

    Attributes:
        messages: the messages so far; empty without a chat template. The content of a
            message is a text. If the model reads pictures, and the chat template takes
            a content of several parts, the content is a list of parts: texts and
            pictures.
        answer: the generation of the last answer, None before the first.
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
        """Begin a conversation, or continue an earlier one.

        If the session holds tokens, `history` must name them, since the session does
        not store tokens. To begin a new conversation, `reset` the session first.

        Args:
            session: a session of a program with the roles "prefill" and "decode".
            tokenizer: the tokenizer of the bundle.
            template: the chat template of the bundle. None: the conversation is one
                text, which each message continues.
            system: the system message.
            messages: the earlier messages as in `Conversation.messages`, including the
                system message.
            history: the tokens that the session holds, as `Conversation.held` returns
                them.
            settings: as in `kvc.runtime.generate`; the token that ends an answer is
                always a stop token.

        Raises:
            BadSetting: a setting is impossible, `session` is not a Session, the program
                has an encoder, or `history` does not have as many tokens as the session
                holds.
            UnknownName: no method has the role "prefill", or none the role "decode".
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
        self._pictures: list[_Shown] = []  # the pictures of earlier turns
        # The session's content: tokens, and marks in place of image tokens.
        self._held = held
        # Without a template: all tokens of the continued text.
        self._text = [*held, *session.pending[0]] if template is None else []
        # A weak reference to the last answer's pieces: dropping the iterator ends it.
        self._open: ref[Generator[str]] | None = None
        self._say_system()
        if messages:
            self.messages = list(messages)

    def __repr__(self) -> str:
        return f"<Conversation, {len(self.messages)} messages, on {self._session!r}>"

    @property
    def reads_pictures(self) -> bool:
        """Tell whether the model reads pictures."""
        return self._places is not None

    def picture(self, picture: "Picture") -> InParts:
        """Preprocess a picture for the argument `images` of `say`.

        Args:
            picture: the path of a file, or a Pillow image.

        Raises:
            BadSetting: the program reads no pictures, or the argument is not a picture.
            BadPicture, FileProblem: the file is not a picture, or is too large.
            MissingPackage: Pillow is not installed.
        """
        (listed,) = pictures_of([picture], None)
        (made,) = prepared(self._session, self._places, listed)
        return made

    def say(
        self, text: str, images: "Sequence[Picture | InParts]" = ()
    ) -> Generator[str]:
        """Return an iterator over the answer to a message, in pieces of text.

        Pictures stand before the text. If the template has no place for pictures, or
        there is no template, the text must have the model's placeholder for each
        picture. If the caller stops taking pieces, the conversation has the pieces
        taken so far as the answer; if the answer has no token yet, the conversation
        stays as it was. If an earlier answer is unfinished, `say` ends it.

        Args:
            text: the user's message.
            images: the pictures of the message.

        Raises:
            CacheOverflow: the session has no room for the message; the conversation is
                as it was.
            BadChatTemplate, TemplateLimit: the template refuses the messages, or
                exceeds its limits; the conversation is as it was.
            KvcError: as `kvc.runtime.generate` and `Session.call`, at once or during
                the answer.
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
        pieces = self._run(self.answer, _Turn(said, tokens, marked, shown))
        self._open = ref(pieces)
        return pieces

    def reset(self) -> None:
        """Clear the conversation, except for the system message.

        Raises:
            Busy, Closed, Forked: as `Session.reset`.
        """
        self._end_open()
        self._forget()
        self._text, self._pictures = [], []
        self._say_system()

    @property
    def is_chat(self) -> bool:
        """Tell whether the conversation has turns; if not, it is one continued text."""
        return self._template is not None

    @property
    def used(self) -> int:
        """Return how many tokens the session holds."""
        return len(self._held)

    @property
    def held(self) -> tuple[int, ...]:
        """Return the tokens that the session holds, negative numbers for pictures.

        Without pictures, `held` and `messages` suffice to continue a saved session.
        """
        return tuple(self._held)

    def _say_system(self) -> None:
        """Set the list of messages to the system message alone."""
        self.messages = []
        if isinstance(self._system, str):
            self.messages.append(self._message("system", self._system))
        elif self._system is not None:
            self.messages.append(self._system)

    def _takes_parts(self) -> bool:
        """Tell whether the template takes messages as lists of parts, with pictures."""
        placeholder = None if self._places is None else self._places.placeholder
        if self._template is None or placeholder is None:
            return False
        parts = [_IMAGE, {"type": "text", "text": "a"}]
        try:
            text = self._template.render([{"role": "user", "content": parts}])
        except BadChatTemplate:  # the template takes only texts
            return False
        return text.count(placeholder) == 1

    def _message(self, role: str, text: str, pictures: int = 0) -> Message:
        if not self._in_parts:
            return {"role": role, "content": text}
        parts = [*[_IMAGE] * pictures, {"type": "text", "text": text}]
        return {"role": role, "content": parts}

    def _tokens(self, said: Message, text: str, shown: Sequence[_Shown]) -> list[int]:
        """Return the tokens of the whole conversation, including a new message.

        Args:
            said: the new message of the user, for the chat template.
            text: the text of the new message, used if there is no template.
            shown: all pictures of the conversation.
        """
        if self._template is not None:
            whole = self._expanded(self._template.render([*self.messages, said]), shown)
            return list(self._tokenizer.encode(whole, special=False))
        more = self._expanded(text, shown[len(self._pictures) :])
        return [*self._text, *self._tokenizer.encode(more, special=not self._text)]

    def _expanded(self, text: str, shown: Sequence[_Shown]) -> str:
        """Return a text in which each picture's placeholder has become image tokens.

        Args:
            text: the text of a message or of a conversation.
            shown: the pictures of the text, in order.
        """
        if self._places is None:
            return text
        return self._places.in_text(text, [one.picture.grid for one in shown])

    def _marked(self, tokens: Sequence[int], shown: Sequence[_Shown]) -> list[int]:
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
        """Rewind the session to the tokens that it has in common with new tokens.

        `tokens` are the tokens of the conversation, with a negative mark for each
        picture's image tokens. Return the number of tokens that the session keeps. At
        least the last of `tokens` is left to run, since only a run returns logits. The
        kept tokens do not end inside a picture. If the session cannot be rewound, reset
        it and return 0.
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
        """End an unfinished answer, and record the tokens that the session holds."""
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
        """Record which of the given tokens the session holds after an answer."""
        try:
            self._held = list(tokens[: int(self._session.position[0])])
        except NoPosition:
            if answer.reason is None:  # the content of the session is unknown
                self._forget()
                return
            # A stop token is pending, too, but is not in `tokens`.
            pending = len(answer.pending) - (answer.reason == "stop")
            self._held = list(tokens[: len(tokens) - pending])
        except (Closed, Poisoned):
            self._held = []

    def _without_first_space(self, piece: str, answer: Generation) -> str:
        """Return the first piece of an answer without the space that the prompt causes.

        Some tokenizers decode a token that follows other tokens with a space before it.
        The space is dropped if the text of the answer's tokens alone would not begin
        with one.
        """
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
