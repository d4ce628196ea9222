"""The encoder's call and the decoder's first tokens, before a generation begins.

In: a session, a prompt, settings. Out: the arguments of `encode`, and the tokens with
which the decoder begins. A text or tokens go to the encoder; the decoder begins with
`decoder_start_token_id`, or with `decoder_prompt`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from kvc.runtime.calls.entries import find_row_lengths
from kvc.runtime.embedding.pictures import check_pictures
from kvc.runtime.generation.preparing import PICTURES, pixels_for
from kvc.runtime.generation.prompts import prompts_of, tokens_of
from kvc.runtime.generation.settings import GenerationSettings
from kvc.runtime.memory.arrays import Array
from kvc.runtime.sessions.methods import Callables, parsed
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import Tokenizer
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.model import Method


@frozen
class Encoding:
    """One call of a method of the role "encode".

    Attributes:
        method: the name of the method.
        given: the first argument of the method.
        row_lengths: the name of the argument for row lengths -> the number of real
            tokens in each row; empty for one row.
    """

    method: str
    given: Array
    row_lengths: Mapping[str, Array] = field(default_factory=dict)


def find_encode(program: Callables) -> Method | None:
    """Return the method that runs an encoder, None for a program without one."""
    methods = program.methods.values()
    return next((method for method in methods if method.role == "encode"), None)


def check_goes_on(session: Session) -> None:
    """Check that a chat can continue on a session: its program has no encoder.

    Raises:
        BadSetting: the program has an encoder, whose call resets the session.
    """
    if find_encode(session) is not None:
        expected = "one of a program without an encoder, for a chat"
        raise BadSetting(name="session", expected=expected, found="one with an encoder")


def check_anew(draft: object, history: Sequence[object]) -> None:
    """Check that no draft and no history is given, since the program has an encoder.

    Raises:
        BadSetting: a draft or a history is given.
    """
    if draft is not None:
        expected = "none: the program has an encoder, which drafts do not support"
        raise BadSetting(name="draft", expected=expected, found="a session")
    if len(history):
        expected = "none: the program has an encoder, whose call resets the session"
        raise BadSetting(name="history", expected=expected, found=repr(history))


def encoding_of(
    session: Session,
    encode: Method,
    prompt: object,
    batch: Sequence[object] | None,
    pictures: object,
    find_tokenizer: Callable[[], Tokenizer],
) -> Encoding:
    """Return the encoder's call for a prompt, or for the prompts of several rows.

    Args:
        session: a session of the program.
        encode: the method of the encoder.
        prompt: a text, tokens, or any other input of the encoder as an array; None
            with a picture.
        batch: the prompts of several rows, as `batch_of` returns them; None for one
            prompt.
        pictures: the picture to encode in place of a prompt; empty for none.
        find_tokenizer: returns the tokenizer for a text.

    Raises:
        BadSetting: the prompt is missing, empty or not a prompt, or there are more
            prompts or pictures than the encoder takes.
        InputMismatch: a token is not in the encoder's vocabulary.
        BadPicture, FileProblem, MissingPackage: as `pixels_for`.
    """
    if not isinstance(pictures, list | tuple) or pictures:
        return _of_picture(session, encode, prompt, pictures)
    taken = session.token_input(encode)
    if taken is None:
        if (
            batch is not None
            or prompt is None
            or isinstance(prompt, str | list | tuple)
        ):
            expected = (
                f"an array, the input of {encode.name}, or for a model of pictures one "
                "picture (images=, --image): its encoder reads no text"
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
    """Return the encoder's call for the tokens of several rows.

    Raises:
        BadSetting: the encoder takes one row at a time.
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
    """Return the encoder's call for a picture.

    Raises:
        BadSetting: the encoder takes no picture, several pictures are given, or a
            picture and a prompt.
    """
    said = parsed(session.metadata, PICTURES)
    if not isinstance(said, dict) or said.get("method") != encode.name:
        expected = "none: the program's encoder takes no pictures"
        raise BadSetting(name="images", expected=expected, found=repr(pictures)[:40])
    listed = check_pictures(pictures)
    if len(listed) != 1:
        expected = "one picture, since the encoder takes no more"
        raise BadSetting(name="images", expected=expected, found=f"{len(listed)}")
    if prompt is not None and not (isinstance(prompt, str) and not prompt):
        expected = (
            "none: the encoder's input is the picture (decoder_prompt= are tokens "
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
        given: the tokens that the caller requested; None for the token in the settings.
        settings: the settings of the generation.
        bos: the token that begins a text, None if the bundle names none.

    Raises:
        BadSetting: neither the caller nor the settings name a token, or `given` is not
            a list of tokens.
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
        expected = "a token; the bundle's generation_config has none"
        raise BadSetting(name="decoder_start_token_id", expected=expected, found=None)
    return (start,)
