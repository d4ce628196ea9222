"""`Conversation`: a chat on one session, which runs only the new tokens of each turn.

In: a session, its bundle's tokenizer and chat template, what the user says. Out: the
answers in pieces. Before each answer the whole conversation is rendered and encoded
again. The session keeps the tokens that are still the same; at the first difference it
is rewound, or reset if it cannot be rewound. Without a chat template, the text is
continued.
"""

from collections.abc import Generator, Sequence
from typing import Unpack
from weakref import ref

from kvc.runtime.generation import (
    Arguments,
    Generation,
    check_session,
    generate,
    settings_of,
)
from kvc.runtime.generation.encoding import check_goes_on
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import ChatTemplate, Message, Tokenizer
from kvc.schema.errors import (
    CannotRewind,
    Closed,
    NoPosition,
    NotRewindable,
    Poisoned,
)


class Conversation:
    """A chat with a model on one session.

    Attributes:
        messages: what was said; a text that is continued has none.
        answer: the generation of the last answer, None before.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        system: str | None = None,
        **settings: Unpack[Arguments],
    ) -> None:
        """Begin on a session that holds nothing.

        Args:
            session: of a program with the roles "prefill" and "decode".
            tokenizer: the bundle's.
            template: the bundle's; None to continue a text.
            system: what the model is told before anything is said.
            settings: as of `kvc.runtime.generate`; the token that ends an answer is a
                stop token in any case.

        Raises:
            BadSetting: a setting is impossible, `session` is no Session, or the program
                has an encoder.
            UnknownName: the program lacks a role.
        """
        check_session(session)
        check_goes_on(session)
        self.answer: Generation | None = None
        self.messages: list[Message] = []
        self._session, self._tokenizer, self._template = session, tokenizer, template
        self._system = system
        stops = list(settings_of(session.metadata, settings).stop_tokens)
        if template is not None:
            stops += template.end_tokens(tokenizer)
        settings.pop("eos_token_id", None)  # another name of stop_tokens
        self._settings = settings
        self._settings["stop_tokens"] = tuple(dict.fromkeys(stops))
        self._held: list[int] = []  # what the session holds
        self._text: list[int] = []  # a text that is continued, all of it
        # The last answer's pieces. Nobody else may keep them: who lets go ends them.
        self._open: ref[Generator[str]] | None = None
        self.reset()

    def __repr__(self) -> str:
        return f"<Conversation, {len(self.messages)} messages, on {self._session!r}>"

    def say(self, text: str) -> Generator[str]:
        """Return the answer to what the user says, in pieces of text as they come.

        The answer belongs to the conversation as far as it was asked for; one that
        ended before its first token leaves the conversation as it was. An answer before
        it that has not ended ends here.

        Raises:
            CacheOverflow: there is no room; the conversation is as it was.
            BadChatTemplate, TemplateLimit: the template refuses it, or takes too much;
                the same.
            KvcError: as `kvc.runtime.generate` and `Session.call`, at once or while the
                answer is made.
        """
        self._end_open()
        said: Message = {"role": "user", "content": text}
        tokens = self._tokens(said)
        prompt = tokens[self._keep_common(tokens) :]
        self.answer = generate(
            self._session,
            prompt,
            tokenizer=self._tokenizer,
            history=self._held,
            **self._settings,
        )
        pieces = self._run(self.answer, said, tokens, prompt)
        self._open = ref(pieces)
        return pieces

    def reset(self) -> None:
        """Forget the conversation, except the system message.

        Raises:
            Busy, Closed, Forked: as `Session.reset`.
        """
        self._end_open()
        self._forget()
        self._text = []
        self.messages = []
        if self._system is not None:
            self.messages.append({"role": "system", "content": self._system})

    @property
    def is_chat(self) -> bool:
        """Tell whether there are turns, rather than a text that is continued."""
        return self._template is not None

    @property
    def used(self) -> int:
        """Return how many tokens the session holds."""
        return len(self._held)

    def _tokens(self, said: Message) -> list[int]:
        """Return the tokens of all that was said, up to where the answer begins."""
        if self._template is not None:
            text = self._template.render([*self.messages, said])
            return list(self._tokenizer.encode(text, special=False))
        more = self._tokenizer.encode(said["content"], special=not self._text)
        return [*self._text, *more]

    def _keep_common(self, tokens: Sequence[int]) -> int:
        """Have the session hold a beginning of some tokens; return its length.

        At least one is left to run, since logits follow from a run.
        """
        common = 0
        for one, other in zip(self._held, tokens[:-1], strict=False):
            if one != other:
                break
            common += 1
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

    def _run(
        self,
        answer: Generation,
        said: Message,
        tokens: Sequence[int],
        prompt: Sequence[int],
    ) -> Generator[str]:
        pieces: list[str] = []
        try:
            for piece in answer.text():
                shown = piece if pieces else self._without_first_space(piece, answer)
                pieces.append(shown)
                if shown:
                    yield shown
        finally:
            answer.close()
            self._settle(answer, [*self._held, *prompt, *answer.tokens])
            if answer.tokens or answer.reason is not None:
                self._note(said, "".join(pieces), [*tokens, *answer.tokens])

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

    def _note(self, said: Message, answer: str, tokens: Sequence[int]) -> None:
        if self._template is None:
            self._text = list(tokens)
        else:
            self.messages += [said, {"role": "assistant", "content": answer}]
