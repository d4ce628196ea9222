"""Chats on disk: what the file of a chat holds beside the states of its session.

In: a conversation. Out: a mapping that the file of the session carries; and from such a
file, the arguments of an equal conversation. A file is untrusted: all that it says is
checked. Its tokens were made by the chat template of then; if the template is another
now, the conversation is rendered anew, and read again from the first difference.
"""

import json
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast, get_args

from kvc.runtime.generation.conversation_room import OnFull
from kvc.runtime.generation.session_rows import check_session
from kvc.runtime.generation.settings import Arguments
from kvc.runtime.sessions.methods import find_roles
from kvc.runtime.sessions.program import Program
from kvc.runtime.sessions.session import Session
from kvc.runtime.sessions.snapshot_files import SnapshotFile
from kvc.runtime.tokenizers import ChatTemplate, Message, chat_template_of
from kvc.schema.container import path_text
from kvc.schema.errors import BadSetting, BadSnapshot
from kvc.schema.frozen import frozen

_KIND: Final = "chat"  # the name of the entry in the file
_MOST: Final = 1 << 62  # the greatest token
_LATER: Final[Mapping[str, object]] = {"on_full": "stop", "dropped": 0}
# Settings of which each takes the place of the others.
_INSTEAD: Final = (
    {"json_schema", "regex", "choices", "grammar"},
    {"max_tokens", "max_new_tokens", "max_length"},
    {"min_new_tokens", "min_length"},
    {"stop_tokens", "eos_token_id"},
)


class TemplateChanged(UserWarning):
    """A chat was saved with another chat template than that of the bundle."""


@frozen
class SavedChat:
    """A conversation as its file has it.

    Attributes:
        messages: the messages.
        held: the tokens that the session holds.
        text: without a template, all tokens of the text.
        tools: the JSON schemas of the tools, None for none.
        template_arguments: more variables of the template.
        settings: the settings of the generations.
        special_tokens: what names of special tokens in messages become.
        on_full: "stop", "drop" or "sinks", as in `Conversation`.
        dropped: how many messages after the system message are no longer read.
        template: the digest of the template, None without one.
    """

    messages: Sequence[Message]
    held: Sequence[int]
    text: Sequence[int]
    tools: Sequence[Mapping[str, object]] | None
    template_arguments: Mapping[str, object]
    settings: Mapping[str, object]
    special_tokens: str
    on_full: OnFull
    dropped: int
    template: str | None

    def as_attached(self) -> dict[str, object]:
        """Return the mapping that the file carries.

        Raises:
            BadSetting: a setting or a message cannot be written as JSON.
        """
        content = {name: getattr(self, name) for name in _FORMS}
        for name, value in content.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError, RecursionError) as error:
                expected = f"JSON, to be saved ({error})"
                found = repr(value)[:80]
                raise BadSetting(name=name, expected=expected, found=found) from error
        return {_KIND: content}

    def replaced(self, new: Mapping[str, object]) -> dict[str, Any]:
        """Return what the template is given, replaced by new values but None."""
        names = ("tools", "template_arguments", "special_tokens", "on_full")
        own = {name: getattr(self, name) for name in names}
        return own | {name: one for name, one in new.items() if one is not None}

    def warn_if_changed(self, template: ChatTemplate | None, stacklevel: int) -> None:
        """Warn if the template is not the one that the chat was saved with.

        Warns:
            TemplateChanged: the digests differ.
        """
        if self.template is None or template is None:
            return
        if self.template != template.digest:
            message = (
                f"the chat was saved with another chat template than {template.file}; "
                "it is read again from where the two differ"
            )
            warnings.warn(message, TemplateChanged, stacklevel=stacklevel + 1)


@contextmanager
def restored(
    source: Program | Session, path: str | os.PathLike[str]
) -> Iterator[tuple[Session, ChatTemplate | None, SavedChat]]:
    """Return a session, the bundle's chat template, and the chat of a file.

    A new session is closed if the `with` block fails.

    Args:
        source: the program, to open a new session; or a session, which holds the tokens
            that the file's session holds, or none.
        path: the path of the file.

    Raises:
        BadSnapshot: the file is damaged, was saved by a different program, or has no
            chat.
        FileProblem: the system cannot read the file.
        KvcError: as `Program.restore` and `chat_template_of`.
    """
    if isinstance(source, Program):
        session, own = source.restore(path), True
    else:
        check_session(source)
        with SnapshotFile(path) as file:
            same = file.header.program == source.identity
            file.require(same, "it is of another program; open it with its own")
            source.attached = file.header.attached
        session, own = source, False
    try:
        template = chat_template_of(session)
        yield session, template, chat_of(session, path_text(path), template)
    except BaseException:
        if own:
            session.close()
        raise


def chat_of(session: Session, path: str, template: ChatTemplate | None) -> SavedChat:
    """Return the chat that a restored session carries.

    Args:
        session: the session.
        path: the path of the file, for messages.
        template: the chat template of the bundle.

    Raises:
        BadSnapshot: the file has no chat, or one that no conversation has saved.
    """

    def require(holds: bool, reason: str) -> None:
        if not holds:
            raise BadSnapshot(path=path, reason=reason)

    found = session.attached.get(_KIND)
    saved = "it has a session without a chat: restore it by Program.restore, and give "
    require(found is not None, saved + "messages= and history= to Conversation")
    content = dict(_LATER)  # what the first files did not have
    content |= found if isinstance(found, dict) else {}
    require(content.keys() == _FORMS.keys(), "its chat has other parts")
    for name, has_form in _FORMS.items():
        require(has_form(content[name]), f"{name} is {repr(content[name])[:80]}")
    chat = SavedChat(**content)  # type: ignore[arg-type]  # _FORMS checked it
    require(
        (chat.template is None) == (template is None),
        "it is of a chat with turns, but the bundle has no chat template"
        if template is None
        else "it is of a text without turns, but the bundle has a chat template",
    )
    problem = _unknown_token(session, (*chat.held, *chat.text))
    require(not problem, problem)
    count = len(chat.messages)
    fewer = chat.dropped <= count
    require(fewer, f"it leaves out {chat.dropped} of {count} messages")
    return chat


def _unknown_token(session: Session, tokens: Sequence[int]) -> str:
    """Return why the model does not have all of the tokens, "" if it does."""
    (decode,) = find_roles(session, "decode")
    count = decode.graph.values[decode.graph.outputs[0]].type.dims[-1]
    most = max(tokens, default=0)
    if isinstance(count, int) and most >= count:
        return f"it has token {most}, but the model has {count} tokens"
    return ""


def settings_in(
    chat: SavedChat, given: Arguments, forget: Collection[str] = ()
) -> Arguments:
    """Return the settings of a saved chat, replaced by those that are not None.

    Those that `forget` names do not count. A setting replaces all that say the same in
    another way, such as another form.
    """
    new = {name: value for name, value in given.items() if value is not None}
    others = {one for group in _INSTEAD if new.keys() & group for one in group}
    gone = others.union(forget)
    kept = {name: one for name, one in chat.settings.items() if name not in gone}
    return cast(Arguments, {**kept, **new})


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and all(
        type(one) is int and 0 <= one < _MOST for one in value
    )


def _are_mappings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict)


def _are_settings(value: object) -> bool:
    return isinstance(value, dict) and value.keys() <= Arguments.__annotations__.keys()


_FORMS: Final[Mapping[str, Callable[[object], bool]]] = {
    "messages": _are_mappings,
    "held": _are_tokens,
    "text": _are_tokens,
    "tools": lambda value: value is None or _are_mappings(value),
    "template_arguments": _is_mapping,
    "settings": _are_settings,
    "special_tokens": lambda value: value in ("tokens", "text"),
    "on_full": lambda value: value in get_args(OnFull),
    "dropped": lambda value: type(value) is int and value >= 0,
    "template": lambda value: value is None or isinstance(value, str),
}
