"""Texts that a user gives: as an argument, in a file, or on stdin.

In: what the command line says. Out: the text, checked to be UTF-8; an error names the
byte that is not.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvc.schema.errors import reason_of

if TYPE_CHECKING:
    from kvc.runtime.tokenizers import Tokenizer


def check_text(text: str, named: str, tokenizer: "Tokenizer | None" = None) -> str:
    """Return a text of the user, whose bytes the system has decoded.

    Args:
        text: the text.
        named: what it is, for messages.
        tokenizer: encodes the text. One whose tokens are bytes takes any.

    Raises:
        click.UsageError: it is not UTF-8.
    """
    problem = why_no_text(text, tokenizer)
    if problem:
        raise click.UsageError(f"{named} {problem}")
    return text


def why_no_text(text: str, tokenizer: "Tokenizer | None" = None) -> str:
    """Return why a text cannot be encoded, "" if it can; as `check_text`."""
    from kvc.runtime.tokenizers.plain import Bytes

    if isinstance(tokenizer, Bytes):
        return ""
    try:
        os.fsencode(text).decode("utf-8")
    except UnicodeEncodeError as error:  # no byte has been read as this character
        return f"is not UTF-8: U+{ord(text[error.start]):04X} at {error.start:,}"
    except UnicodeDecodeError as error:
        return _what_is_wrong(error)
    return ""


def read_stdin(named: str) -> str:
    """Return all of stdin; bytes that are not UTF-8 stay, as those of arguments do.

    Args:
        named: what it is, for messages.

    Raises:
        click.ClickException: stdin is closed.
    """
    if sys.stdin is None:
        raise click.ClickException(f"stdin is closed; give {named} as an argument")
    return os.fsdecode(sys.stdin.buffer.read())


def text_of(path: str, option: str) -> str:
    """Return the text in a file that an option names; - names stdin.

    Raises:
        click.BadParameter: the file cannot be read, or is not UTF-8.
        click.ClickException: as `read_stdin`.
    """
    if path == "-":
        return check_text(read_stdin(option), f"{option} -")
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = f"{path}: {reason_of(error)}"
        raise click.BadParameter(reason, param_hint=option) from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"{path} {_what_is_wrong(error)}"
        raise click.BadParameter(reason, param_hint=option) from error


def _what_is_wrong(error: UnicodeDecodeError) -> str:
    byte, place = error.object[error.start], error.start
    return f"is not UTF-8: byte 0x{byte:02x} at {place:,}"
