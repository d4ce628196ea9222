"""What a generation gives an encoder before it begins.

In: a session, a prompt, settings. Out: what `encode` is called with, and the tokens
with which the decoder begins. A text or tokens are the encoder's; the decoder begins
with `decoder_start_token_id`, or with `decoder_prompt`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from kvc.runtime.calls.entries import find_row_lengths, find_tokens
from kvc.runtime.embedding.pictures import check_pictures
from kvc.runtime.generation.preparing import PICTURES, pixels_for
from kvc.runtime.generation.prompts import prompts_of, tokens_of
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.methods import parsed
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.model import Method


@frozen
class Encoding:
    """One call of a method of the role "encode".

    Attributes:
        method: its name.
        given: its argument.
        row_lengths: how much of each row's is real, by the argument's name; nothing for
            one row.
    """

    method: str
    given: Array
    row_lengths: Mapping[str, Array] = field(default_factory=dict)


def find_encode(session: Session) -> Method | None:
    """Return the method that runs an encoder, None for a program without one."""
    methods = session.methods.values()
    return next((method for method in methods if method.role == "encode"), None)


def check_goes_on(session: Session) -> None:
    """Check that a text of a session can be continued by what is said next.

    Raises:
        BadSetting: its program has an encoder, with which a session begins anew.
    """
    if find_encode(session) is not None:
        expected = "one of a program without an encoder, for a chat"
        raise BadSetting(name="session", expected=expected, found="one with an encoder")


def check_anew(draft: object, history: Sequence[object]) -> None:
    """Check that a generation with an encoder goes on from nothing.

    Raises:
        BadSetting: it does not.
    """
    if draft is not None:
        expected = "none: the program has an encoder, which a draft has not"
        raise BadSetting(name="draft", expected=expected, found="a session")
    if len(history):
        expected = "none: the program has an encoder, with which a session begins anew"
        raise BadSetting(name="history", expected=expected, found=repr(history))


def encoding_of(
    session: Session,
    encode: Method,
    prompt: object,
    batch: Sequence[object] | None,
    pictures: object,
    find_tokenizer: Callable[[], Tokenizer],
) -> Encoding:
    """Return the call that gives an encoder a prompt, or those of several rows.

    Args:
        session: of the program.
        encode: the method.
        prompt: a text, tokens, or what else the encoder takes as an array; None with a
            picture.
        batch: what `batch_of` makes of it.
        pictures: one that it takes in the place of a prompt, or none.
        find_tokenizer: for a text.

    Raises:
        BadSetting: there is none, or it is empty or no prompt, or there is more than
            the encoder takes.
        InputMismatch: the model does not have a token of it.
        BadPicture, FileProblem, MissingPackage: as `pixels_for`.
    """
    if not isinstance(pictures, list | tuple) or pictures:
        return _of_picture(session, encode, prompt, pictures)
    taken = find_tokens(encode)
    if taken is None:
        if (
            batch is not None
            or prompt is None
            or isinstance(prompt, str | list | tuple)
        ):
            expected = (
                f"an array, as {encode.name} takes it, or of a model of pictures one "
                "of these (images=, --image): its encoder reads no text"
            )
            raise BadSetting(name="prompt", expected=expected, found=repr(prompt)[:40])
        return Encoding(encode.name, np.asarray(prompt))
    rows = [
        np.array(tokens_of(one, find_tokenizer, is_start=True), np.int64)
        for one in prompts_of(prompt, batch)
    ]
    for row in rows:
        taken.check(row)
    if len(rows) == 1:
        return Encoding(encode.name, rows[0][None])
    return _of_rows(encode, rows)


def _of_rows(encode: Method, rows: Sequence[Array]) -> Encoding:
    """Return the call that gives an encoder the tokens of several rows.

    Raises:
        BadSetting: it takes one row at a time.
    """
    taken = find_row_lengths(encode)
    if taken is None:
        expected = (
            "one, since the encoder takes one at a time (CacheConfig(batch=), "
            "--max-batch)"
        )
        raise BadSetting(name="prompt", expected=expected, found=f"{len(rows)}")
    lengths = np.array([len(row) for row in rows], np.int64)
    tokens = np.zeros((len(rows), lengths.max()), np.int64)
    for row, values in zip(tokens, rows, strict=True):
        row[: len(values)] = values
    return Encoding(encode.name, tokens, {taken.name: lengths})


def _of_picture(
    session: Session, encode: Method, prompt: object, pictures: object
) -> Encoding:
    """Return the call that gives an encoder a picture.

    Raises:
        BadSetting: it takes none, there are several, or there is a prompt.
    """
    said = parsed(session.metadata, PICTURES)
    if not isinstance(said, dict) or said.get("method") != encode.name:
        expected = "none: the program's encoder takes no pictures"
        raise BadSetting(name="images", expected=expected, found=repr(pictures)[:40])
    listed = check_pictures(pictures)
    if len(listed) != 1:
        expected = "one picture, which is all that the encoder takes"
        raise BadSetting(name="images", expected=expected, found=f"{len(listed)}")
    if prompt is not None and not (isinstance(prompt, str) and not prompt):
        expected = (
            "none: the picture is what the encoder takes (decoder_prompt= are tokens "
            "that the decoder begins with)"
        )
        raise BadSetting(name="prompt", expected=expected, found=repr(prompt)[:40])
    (pixels,) = pixels_for(session, encode, listed)
    return Encoding(encode.name, pixels[None])


def decoder_prompt_of(
    given: Sequence[int] | None, settings: GenerationSettings, bos: int | None
) -> tuple[int, ...]:
    """Return the tokens with which a decoder begins.

    Args:
        given: by the caller; None: what the settings say.
        settings: of the generation.
        bos: the token that begins a text, if the bundle says so.

    Raises:
        BadSetting: nobody says it, or there are no tokens.
    """
    if given is not None:
        (one,) = prompts_of(given, None)
        if isinstance(one, str):
            expected, found = "tokens", repr(one)
            raise BadSetting(name="decoder_prompt", expected=expected, found=found)
        return one
    start = settings.decoder_start_token_id
    start = bos if start is None else start
    if start is None:
        expected = "a token; the bundle's generation_config does not say one"
        raise BadSetting(name="decoder_start_token_id", expected=expected, found=None)
    return (start,)
