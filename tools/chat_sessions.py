"""The file of a chat: `kvc chat --session FILE` begins or continues it, and saves it.

In: a program, and what the user gives. Out: a conversation; after each turn a file that
has it. A file that cannot be used is left as it is.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kvc.schema.text import plural
from kvc.tools.chat_options import TemplateGiven
from kvc.tools.generation_options import telling_what_is_ignored
from kvc.tools.inputs import check_text

if TYPE_CHECKING:
    from kvc.runtime import Conversation, Program
    from kvc.runtime.generation import Arguments

# Settings of one command, which the next one does not take from the file.
OF_ONE_COMMAND: Final = (
    "json_schema", "regex", "choices", "grammar",
    "max_tokens", "max_new_tokens", "max_length",
)  # fmt: skip


@contextmanager
def conversation_of(
    program: "Program",
    capacity: int | None,
    file: Path | None,
    system: str | None,
    given: TemplateGiven,
    settings: "Arguments",
) -> Iterator["Conversation"]:
    """Return the conversation in a file, or a new one; its session is closed.

    Args:
        program: the program.
        capacity: how many tokens the conversation may have, None for the default.
        file: the file; None, or one that is not there, for a new conversation.
        system: the system message.
        given: what the chat template is given.
        settings: the settings of the answers.

    Raises:
        click.UsageError: an option does not fit the chat in the file, or there is no
            chat template for it.
        KvcError: as `Conversation`, `Conversation.restore` and `Conversation.save`.
    """
    from kvc.runtime import Conversation
    from kvc.runtime.tokenizers import chat_template_of, tokenizer_of

    if system is not None:
        check_text(system, "--system", tokenizer_of(program))
    if file is not None and file.exists():
        with _continued(program, file, given, settings) as conversation:
            _check(conversation, file, system, capacity)
            yield conversation
        return
    with program.session(capacity=capacity) as session:
        template = chat_template_of(program)
        if template is None:
            _note_no_template(system, given)
        with telling_what_is_ignored():
            conversation = Conversation(
                session,
                tokenizer_of(program),
                template,
                system,
                tools=given.tools,
                template_arguments=given.arguments,
                special_tokens=given.special_tokens or "tokens",
                on_full=given.on_full or "stop",
                **settings,
            )
        if file is not None:
            conversation.save(file)
        yield conversation


def _note_no_template(system: str | None, given: TemplateGiven) -> None:
    click.echo(
        "note: the bundle has no chat template: the model continues what you write",
        err=True,
    )
    for option in ("--system",) * (system is not None) + given.options:
        raise click.UsageError(
            f"{option} needs a chat template, which the bundle does not have"
        )


@contextmanager
def _continued(
    program: "Program", file: Path, given: TemplateGiven, settings: "Arguments"
) -> Iterator["Conversation"]:
    from kvc.runtime import BadSnapshot, Conversation

    try:
        with telling_what_is_ignored():
            conversation = Conversation.restore(
                program,
                file,
                tools=given.tools,
                template_arguments=given.arguments or None,
                special_tokens=given.special_tokens,
                on_full=given.on_full,
                forget=OF_ONE_COMMAND,
                **settings,
            )
    except BadSnapshot as error:
        reason = f"{error.reason}; move it away to begin a new chat"
        raise BadSnapshot(path=error.path, reason=reason) from error
    with conversation.session:
        turns = sum(one.get("role") == "user" for one in conversation.messages)
        what = f"{plural(turns, 'turn')} and {plural(conversation.used, 'token')}"
        kept = _kept(conversation, given, settings)
        click.echo(f"{file}: going on after {what}{kept}", err=True)
        yield conversation


def _kept(
    conversation: "Conversation", given: TemplateGiven, settings: "Arguments"
) -> str:
    """Return which settings of the file count, as the end of a line; "" for none."""
    found = [
        f"{name.replace('_', '-')} {_shown(value)}"
        for name, value in conversation.settings.items()
        if value is not None and settings.get(name) is None and name != "stop_tokens"
    ]
    if conversation.on_full == "drop" and given.on_full is None:
        found.append("on-full drop")
    return f", with {', '.join(found)} (saved)" if found else ""


def _shown(value: object) -> str:
    listed = isinstance(value, list | tuple)
    return json.dumps(value, ensure_ascii=False) if listed else str(value)


def _check(
    conversation: "Conversation", file: Path, system: str | None, capacity: int | None
) -> None:
    """Check that options for the beginning of a chat fit one that goes on.

    Raises:
        click.UsageError: one does not fit.
    """
    first = conversation.messages[0] if conversation.messages else {}
    said = first.get("content") if first.get("role") == "system" else None
    if system is not None and said != system:
        raise click.UsageError(
            f"--system is for a new chat; that in {file} has begun with "
            f"{'another' if said else 'no'} system message"
        )
    if capacity not in (None, conversation.session.capacity):
        raise click.UsageError(
            f"--capacity is for a new chat; that in {file} has "
            f"{conversation.session.capacity}"
        )


def saving(
    conversation: "Conversation", file: Path | None, note: Callable[[str], None]
) -> Callable[[], None]:
    """Return a function that saves the conversation, or tells why it cannot."""

    def save() -> None:
        from kvc.runtime import BadSetting, CannotWrite, Unsynced

        if file is None:
            return
        try:
            conversation.save(file)
        except (BadSetting, CannotWrite, Unsynced) as error:
            note(f"the chat is not saved: {error}")

    return save
