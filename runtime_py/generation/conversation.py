"""`Conversation`: a chat on one session, which runs only the new tokens of each turn.

In: a session, its bundle's tokenizer and chat template, the user's messages. Out: the
answers in pieces (`conversation_reply.py`). Before each answer the whole conversation
is rendered and encoded again (`conversation_script.py`), and compared with the tokens
that the session holds (`conversation_held.py`). The session is rewound to the first
difference, or reset if it cannot be rewound. Old turns may be left out where the
session is full (`conversation_room.py`). Without a chat template, a conversation is
one text that each message continues. Preprocessed pictures of the conversation stay in
memory, since a reset session has to run them again.
"""

import os
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from kvc.runtime.embedding.parts import InParts
from kvc.runtime.generation import Arguments, check_session
from kvc.runtime.generation.conversation_files import (
    SavedChat,
    restored,
    settings_in,
)
from kvc.runtime.generation.conversation_held import Held
from kvc.runtime.generation.conversation_room import OnFull
from kvc.runtime.generation.conversation_script import Script
from kvc.runtime.generation.conversation_start import (
    held_of,
    system_of,
    tool_message,
)
from kvc.runtime.generation.conversation_turns import Turns
from kvc.runtime.generation.encoding import check_goes_on
from kvc.runtime.generation.picture_places import places_of
from kvc.runtime.generation.preparing import pictures_of, prepared
from kvc.runtime.sessions.program import Program
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import (
    ChatTemplate,
    Message,
    Tokenizer,
    Tool,
    tokenizer_of,
)
from kvc.runtime.tokenizers.reply_parser import Piece
from kvc.schema.errors import BadSetting

if TYPE_CHECKING:
    from kvc.runtime.embedding.pictures import Picture


class Conversation(Turns):
    """A chat with a model on one session.

    Attributes:
        messages: the messages so far, also those that are no longer read; empty without
            a chat template. The content of a message is a text. If the model reads
            pictures, and the chat template takes a content of several parts, the
            content is a list of parts: texts and pictures.
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
        *,
        tools: Sequence[Tool] | None = None,
        template_arguments: Mapping[str, object] | None = None,
        special_tokens: str = "tokens",
        on_full: OnFull = "stop",
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
            tools: the tools that the model may call: JSON schemas, or functions with
                type hints and docstrings. The chat template tells the model of them.
            template_arguments: more variables of the chat template, such as
                {"enable_thinking": False} or {"documents": [...]}.
            special_tokens: what names of special tokens in messages, tools and
                arguments become: "tokens", as in transformers, or "text", so that a
                user cannot forge turns. "text" is refused at a turn at which the
                template rewrites texts where they have such names.
            on_full: what happens where the session is full. "stop": the answer ends
                there, and a message without room is refused. "drop": the oldest turns
                are no longer read, each a message of the user with all that answers
                it, so that the message and its answer fit: until `max_tokens` tokens
                are free, at most half of the capacity, and at least a fourth of it. An
                answer goes on where the session is full, after the conversation
                without its oldest turns. The system message and tools stay. "sinks":
                the session must never be full, as those of a model that was compiled
                with a window and first positions (`CacheConfig(window=, keep=)`): all
                is read once, and what lies between these is forgotten. With such a
                model the others do the same.
            settings: as in `kvc.runtime.generate`; the token that ends an answer is
                always a stop token.

        Raises:
            BadSetting: a setting, a tool or an argument of the template is impossible,
                there is no template for `on_full="drop"`, the session has a limit and
                `on_full` is "sinks", `session` is not a Session, the program has an
                encoder, or `history` does not have as many tokens as the session holds.
            UnknownName: no method has the role "prefill", or none the role "decode".

        Warns:
            UnknownAnswers: there are tools, but the template is of no known family of
                models; or the bundle describes its answers wrongly.
            SettingIgnored: as `kvc.runtime.generate`.
        """
        check_session(session)
        check_goes_on(session)
        held = held_of(session, history)
        script = Script(
            tokenizer,
            template,
            places_of(session),
            tools,
            template_arguments,
            special_tokens,
        )
        first = system_of(system, messages, template)
        super().__init__(script, Held(session, held), first, settings, on_full, 2)
        if template is None:
            self._text = [*held, *session.pending[0]]
        if messages:
            self.messages = list(messages)

    def __repr__(self) -> str:
        return f"<Conversation, {len(self.messages)} messages, on {self.session!r}>"

    @property
    def reads_pictures(self) -> bool:
        """Tell whether the model reads pictures."""
        return self._script.places is not None

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
        (made,) = prepared(self.session, self._script.places, listed)
        return made

    def say(
        self,
        said: str | Message | Sequence[Message],
        images: "Sequence[Picture | InParts]" = (),
    ) -> Generator[Piece]:
        """Return an iterator over the answer to a message, in pieces.

        A piece is a text; its attribute `part` says of what: "content",
        "reasoning_content" or "tool_calls". The finished answer is the last of
        `messages`, with these parts. If the form of the model's answers is unknown, all
        is content.

        Pictures stand before the text. If the template has no place for pictures, or
        there is no template, the text must have the model's placeholder for each
        picture. If the caller stops taking pieces, the conversation has the pieces
        taken so far as the answer; if the answer has no token yet, the conversation
        stays as it was. If an earlier answer is unfinished, `say` ends it.

        Args:
            said: the user's message; or a message, or several, such as results of
                tools: {"role": "tool", "name": ..., "content": ...}.
            images: the pictures of the message.

        Raises:
            BadSetting: `said` is neither a text nor messages, there are messages but
                no chat template, or the template leaves out one of an unusual role.
            CacheOverflow: the session has no room for the message, with "drop" not even
                for the message alone; the conversation is as it was.
            BadChatTemplate, TemplateLimit: the template refuses the messages, or
                exceeds its limits; the conversation is as it was.
            KvcError: as `kvc.runtime.generate` and `Session.call`, at once or during
                the answer.
        """
        return self._answered(said, images)

    def say_tool(
        self, content: object, name: str | None = None, call_id: str | None = None
    ) -> Generator[Piece]:
        """Return an iterator over the answer to the result of a tool's call.

        To give the results of several calls at once, `say` a list of messages.

        Args:
            content: the result: a text, or anything that becomes JSON.
            name: the name of the tool; default: that of the last message's only call.
            call_id: the id of the call; default: that of the last message's only call.

        Raises:
            BadSetting: the result cannot be written as JSON.
            KvcError: as `say`.
        """
        last = self.messages[-1] if self.messages else {}
        return self.say([tool_message(content, name, call_id, last)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation and its session to a file, for `restore`.

        The file holds the messages, the tools, the arguments of the template, the
        settings and the states of the session; `Program.restore` reads it too. It is
        written completely or not at all. An unfinished answer ends.

        Raises:
            BadSetting: `path` is not a path, a setting or a message cannot be written
                as JSON, or the conversation has pictures.
            CannotWrite: the system refuses the write; an existing file is unchanged.
            Poisoned, Busy, Closed, Forked: as `Session.save`.
        """
        self._end_open()
        if self._pictures:
            found = f"{len(self._pictures)} of them"
            raise BadSetting(name="pictures", expected="none, to be saved", found=found)
        script, template = self._script, self._script.template
        session, held = self.session, self._held.tokens
        if template is not None and self._held.needs_copies:  # which the file has not
            read = self._room.read(self.messages)
            session, held = self._held.before(script.next_turn(read))
        chat = SavedChat(
            messages=self.messages,
            held=held,
            text=self._text,
            tools=script.tools,
            template_arguments=script.arguments,
            settings=self._settings,
            special_tokens=script.special_tokens,
            on_full=self._room.on_full,
            dropped=self._room.dropped,
            template=None if template is None else template.digest,
        )
        try:
            session.save(path, chat.as_attached())
        finally:
            if session is not self.session:
                session.close()

    @classmethod
    def restore(
        cls,
        source: Program | Session,
        path: str | os.PathLike[str],
        *,
        tools: Sequence[Tool] | None = None,
        template_arguments: Mapping[str, object] | None = None,
        special_tokens: str | None = None,
        on_full: OnFull | None = None,
        forget: Collection[str] = (),
        **settings: Unpack[Arguments],
    ) -> "Conversation":
        """Continue a conversation that `save` wrote, where it was.

        Nothing has to be read again, unless the chat template or what it is given
        differs now: then the next answer reads again from the first difference.

        Args:
            source: the program, to open a new session, `session` of the result; or a
                session that holds what the file's session holds, or nothing.
            path: the path of the file.
            tools: replace those of the file, unless None.
            template_arguments: replace those of the file, unless None.
            special_tokens: replaces that of the file, unless None.
            on_full: replaces that of the file, unless None.
            forget: names of settings of the file that do not count.
            settings: replace those of the file, unless None.

        Raises:
            BadSnapshot: the file is damaged, is of another program or has no chat; the
                file is unchanged.
            BadSetting: as `Conversation`, or a session holds other tokens.
            FileProblem: the system cannot read the file.
            KvcError: as `Program.restore`, `chat_template_of` and `tokenizer_of`.

        Warns:
            TemplateChanged: the chat was saved with another chat template.
        """
        new = {
            "tools": tools,
            "template_arguments": template_arguments,
            "special_tokens": special_tokens,
            "on_full": on_full,
        }
        with restored(source, path) as (session, template, chat):
            chat.warn_if_changed(template, stacklevel=2)
            given = settings_in(chat, settings, forget)
            made = cls(
                session,
                tokenizer_of(session),
                template,
                messages=chat.messages,
                history=() if session.holds_nothing else chat.held,
                **chat.replaced(new),
                **given,
            )
            made._text, made._room.dropped = list(chat.text), chat.dropped
            return made

    def reset(self) -> None:
        """Clear the conversation, except for the system message.

        Raises:
            Busy, Closed, Forked: as `Session.reset`.
        """
        self._end_open()
        self._held.forget()
        self._text, self._pictures = [], []
        self._say_system()

    @property
    def problems(self) -> tuple[str, ...]:
        """Return why the last answer's calls stay in its text, such as broken JSON."""
        return () if self._reply is None else self._reply.problems

    @property
    def settings(self) -> Arguments:
        """Return the settings of all answers, as they were given or restored."""
        return self._settings.copy()

    @property
    def on_full(self) -> OnFull:
        """Return what happens where the session is full."""
        return self._room.on_full

    @property
    def dropped(self) -> int:
        """Return how many messages, after the system message, are no longer read."""
        return self._room.dropped

    @property
    def read_again(self) -> int:
        """Return how many tokens the last answer read again, since turns were dropped.

        They are among those of `answer.prefill`.
        """
        return self._room.read_again

    @property
    def kept_nbytes(self) -> int:
        """Return how many bytes the copies of states take that it can go back to.

        Only states that cannot be rewound, such as recurrent ones, have copies: of the
        last 4 turns, at the end of what the next turn will share.
        """
        return self.session.going_back.kept_nbytes

    @property
    def has_tools(self) -> bool:
        """Tell whether the model may call tools."""
        return bool(self._script.tools)

    @property
    def is_chat(self) -> bool:
        """Tell whether the conversation has turns; if not, it is one continued text."""
        return self._script.template is not None

    @property
    def used(self) -> int:
        """Return how many tokens the session holds."""
        return len(self._held.tokens)

    @property
    def held(self) -> tuple[int, ...]:
        """Return the tokens that the session holds, negative numbers for pictures.

        Without pictures, `held` and `messages` suffice to continue a saved session.
        """
        return tuple(self._held.tokens)
