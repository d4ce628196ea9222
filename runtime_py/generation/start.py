"""`generate`: check all arguments, then make a `Generation`.

    prompts --Feeder, in chunks--> logits of each row --Chooser--> a token of each row
      --Answer--> returned, or the end --Spelling--> text

In: a session, one prompt or several prompts, settings. Out: a `Generation`, or for
several prompts a `BatchGeneration`, that has not run anything yet.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, Unpack, overload
from weakref import WeakKeyDictionary

from kvc.runtime.generation.answer import Answer
from kvc.runtime.generation.decode_loop import Decoding
from kvc.runtime.generation.drafts import draft_tokens_of, start_drafting
from kvc.runtime.generation.encoding import (
    Encoding,
    check_anew,
    decoder_prompt_of,
    encoding_of,
    find_encode,
)
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.generation.generation import BatchGeneration, Generation
from kvc.runtime.generation.image_prefill import Picturing, picturing_of
from kvc.runtime.generation.matching import matchers_of
from kvc.runtime.generation.picture_places import places_of
from kvc.runtime.generation.preparing import check_alone, pictures_of, prepared
from kvc.runtime.generation.prompt_logprobs import WatchedFeeder
from kvc.runtime.generation.prompts import (
    batch_of,
    histories_of,
    prompts_of,
    tokens_of,
)
from kvc.runtime.generation.session_rows import check_session
from kvc.runtime.generation.settings import (
    Arguments,
    GenerationSettings,
    bos_of,
    settings_of,
)
from kvc.runtime.generation.spread_checks import (
    check_spread,
    rows_for_beams,
    warn_if_equal,
)
from kvc.runtime.generation.spreading import BeamAnswer, open_seed, spread_over
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import Tokenizer, tokenizer_of
from kvc.schema.errors import BadSetting

if TYPE_CHECKING:
    import numpy as np

    from kvc.runtime.embedding.parts import InParts
    from kvc.runtime.embedding.pictures import Picture

    Prompt = str | Sequence[int] | np.typing.NDArray[np.int64]
    Prompts = Sequence[Prompt] | np.typing.NDArray[np.int64]
import warnings
from collections.abc import Iterable, Sequence

# Duplicate beginning-of-text tokens


_HEAD: Final = 256  # the number of characters of a text that are checked


class BegunTwice(UserWarning):
    """A text starts with the token that the tokenizer puts before every text."""


def warn_if_begun_twice(
    texts: Iterable[str], tokenizer: Tokenizer, stacklevel: int = 1
) -> None:
    """Warn once if a text already begins with the token that the tokenizer adds.

    Args:
        texts: texts at the beginning of a session.
        tokenizer: the tokenizer that encodes them.
        stacklevel: the stack level of the warning, 1 for the caller of this function.

    Warns:
        BegunTwice: a text begins with the token.
    """
    for text in texts:
        head = text[:_HEAD]
        twice = _begun_twice(tokenizer.encode(head), tokenizer.encode(head, False))
        if twice:
            named = ", ".join(map(str, twice))
            message = (
                f"the prompt begins with a special token that the tokenizer adds too "
                f"(token {named}), so the model reads it twice; remove it from the "
                "text, where a chat template may have put it, or pass the tokens, "
                "tokenizer.encode(text, special=False)"
            )
            warnings.warn(message, BegunTwice, stacklevel=stacklevel + 1)
            return


def _begun_twice(whole: Sequence[int], bare: Sequence[int]) -> Sequence[int]:
    """Return the special tokens that occur twice at a text's start; empty for none.

    Args:
        whole: the tokens of the text, with the special tokens that the tokenizer adds.
        bare: the tokens of the text without added special tokens.
    """
    whole, bare = list(whole), list(bare)
    for count in range(1, len(whole) - len(bare) + 1):
        if whole[count : count + len(bare)] == bare:
            return whole[:count] if bare[:count] == whole[:count] else ()
    return ()


# `generate`


_TOKENIZERS: Final[WeakKeyDictionary[object, Tokenizer]] = WeakKeyDictionary()


@overload
def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts
    session: Session,
    prompt: "Prompt | None" = None,
    *,
    images: "Sequence[Picture | InParts]" = (),
    tokenizer: Tokenizer | None = None,
    history: Sequence[int] = (),
    draft: Session | Literal["prompt"] | None = None,
    draft_tokens: int | None = None,
    decoder_prompt: Sequence[int] | None = None,
    **settings: Unpack[Arguments],
) -> Generation: ...


@overload
def generate(
    session: Session,
    prompt: "Prompt | None" = None,
    *,
    n: int,
    images: "Sequence[Picture | InParts]" = (),
    tokenizer: Tokenizer | None = None,
    history: Sequence[int] = (),
    decoder_prompt: Sequence[int] | None = None,
    **settings: Unpack[Arguments],
) -> BatchGeneration: ...


@overload
def generate(
    session: Session,
    prompt: "Prompts",
    *,
    images: "Sequence[Sequence[Picture]]" = (),
    attention_mask: object = None,
    tokenizer: Tokenizer | None = None,
    history: Sequence[Sequence[int]] = (),
    draft: Session | Literal["prompt"] | None = None,
    draft_tokens: int | None = None,
    decoder_prompt: Sequence[int] | None = None,
    **settings: Unpack[Arguments],
) -> BatchGeneration: ...


def generate(
    session: Session,
    prompt: object = None,
    *,
    n: int | None = None,
    images: "Sequence[Picture | InParts | Sequence[Picture]]" = (),
    attention_mask: object = None,
    tokenizer: Tokenizer | None = None,
    history: Sequence[object] = (),
    draft: Session | Literal["prompt"] | None = None,
    draft_tokens: int | None = None,
    decoder_prompt: Sequence[int] | None = None,
    **settings: Unpack[Arguments],
) -> Generation | BatchGeneration:
    """Continue the content of a session with a prompt, or several prompts at once.

    If the program has an encoder, the prompt is the encoder's input. The encoder runs
    before the first token is generated, and resets the session.

    Nothing runs before the first token is requested. A list of prompts, or an array of
    several rows, is a batch: prompt r is run in row r of the session, and each row ends
    independently of the others.

    Args:
        session: a session of a program with the roles "prefill" and "decode". It has
            one row; for a batch one row for each prompt: `program.session(batch=n)`.
        prompt: a text, or at least one token id. For a batch, a list of texts or of
            token ids, which may have different lengths, or token ids [batch, n]. None
            if an encoder takes only a picture.
        n: how many answers to make to one prompt, in a session of n rows: a
            `BatchGeneration`. The prompt runs once; row 0 of the session counts, and
            the other rows become copies of it. Row r samples with `seed` + r.
        attention_mask: for token ids [batch, n], a mask [batch, n]: 1 for a token, and
            0 for padding at either end of a row, as tokenizers of transformers return
            it.
        images: the pictures of a prompt, paths of files or Pillow images, if the
            program reads pictures; for a batch a list of pictures for each prompt. A
            text must have the model's placeholder, such as <image>, once for each
            picture; tokens must have the image token once for each picture, or once for
            each embedding. A later prompt may have new pictures. An encoder of pictures
            takes a single picture, and no prompt. Pictures cannot be combined with a
            draft.
        tokenizer: the tokenizer for text. Default: the tokenizer of the bundle.
        history: the tokens that the session holds already; for a batch a list of the
            tokens of each row. They are needed for the repetition penalty, and for a
            draft that holds fewer tokens than `session`.
        draft: a session of a smaller model with the same vocabulary, which holds the
            tokens of `session`, or a prefix of `history`; for a batch, with as many
            rows. The draft guesses tokens, and `session` checks several guesses in one
            call; see `kvc.runtime.generation.drafting`. "prompt": the text so far is
            the draft, which helps where an answer repeats its prompt. A draft cannot be
            combined with `n` or an encoder.
        draft_tokens: the greatest number of guesses per check; default: 4, or 16 from
            the prompt.
        decoder_prompt: with an encoder, the tokens that the decoder of each row begins
            with; default: `decoder_start_token_id` alone.
        settings: the fields of `GenerationSettings`. If a field is missing or None, the
            bundle's "generation_config" applies. Without a "generation_config", the
            likeliest token is taken until the cache is full. `max_new_tokens` is
            `max_tokens`, `eos_token_id` is `stop_tokens`. A temperature above 0, a
            top_k, top_p or min_p requests sampling; `do_sample` overrides that. Row r
            of a batch takes `seed` + r: its tokens are those of a single prompt with
            that seed, except for different rounding of logits in a batch. `num_beams`
            searches for the likeliest answer to one prompt, in a session of as many
            rows, of which row 0 counts; afterwards row 0 holds prompt and answer. Beams
            do not go with sampling, drafts, forms and stop strings.

    Returns:
        A `Generation` of one prompt, a `BatchGeneration` of a list, of several rows, or
        of `n` answers.

    Raises:
        BadSetting: a setting is impossible or not supported, `session` is not a
            Session, a prompt is empty or not a prompt, the numbers of rows and prompts
            differ, or the program's methods cannot run rows of different lengths. With
            a draft: the draft is `session` itself, has another vocabulary, or holds
            other tokens or rows than it may. With `n` or `num_beams`: the program's
            sessions cannot have one row.
        TypeError: a keyword argument is not a setting.
        UnknownName: no method has the role "prefill", or none the role "decode"; or,
            with a draft, no method of `session` has the role "prefill_all".
        NoPosition, NotRewindable, CannotRewind: with a draft, one of the two sessions
            cannot be rewound, or not each row by itself.
        BadPicture, FileProblem: a file is not a picture, or is too large.
        InputMismatch: a token of the prompt is not in the vocabulary.
        PromptTooLong: the session has no room for the prompt.
        MissingPackage, BadTokenizer: the bundle's tokenizer cannot be used, or Pillow
            is not installed for pictures.
        Poisoned, Busy, Closed, Forked: as `Session.call`.

    Warns:
        SettingIgnored: for settings of the cache, for settings of the bundle that kvc
            does not support, for unknown keywords of a JSON Schema, and for several
            answers that will be equal.
        BegunTwice: a text begins with the token that the tokenizer puts before it.
    """
    check_session(session)
    batch = batch_of(prompt, attention_mask)
    is_alone = batch is None and draft is None
    beams = rows_for_beams(session, n, is_alone)
    combined = settings_of(session.metadata, settings, stacklevel=2, rows=beams)
    draft_tokens = draft_tokens_of(draft, draft_tokens)
    spread = check_spread(session, combined, n, is_alone)
    whole, encode = session, find_encode(session)
    session = whole if spread == 1 else open_seed(whole, encode is not None)

    def find_tokenizer() -> Tokenizer:
        return _tokenizer_of(session) if tokenizer is None else tokenizer

    given = [prompt] if batch is None else batch
    encoding = None
    if encode is not None:
        check_anew(draft, history)
        encoding = encoding_of(session, encode, prompt, batch, images, find_tokenizer)
        prompt = decoder_prompt_of(decoder_prompt, combined, bos_of(session.metadata))
        batch = None if batch is None else [prompt] * len(batch)
    elif decoder_prompt is not None:
        expected = "none: the program has no encoder"
        found = repr(decoder_prompt)
        raise BadSetting(name="decoder_prompt", expected=expected, found=found)
    places, picturing = places_of(session), None
    prompts = prompts_of(prompt, batch)
    grids: Sequence[Sequence[str]] = [()] * len(prompts)
    if encode is None:
        pictures = pictures_of(images, None if batch is None else len(batch))
        rows = [prepared(session, places, row) for row in pictures]
        picturing = picturing_of(session, places, rows)
    if picturing is not None:
        check_alone(draft is not None)
        grids = picturing.grids
    if places is not None:
        prompts = [
            places.in_text(one, row) if isinstance(one, str) else one
            for one, row in zip(prompts, grids, strict=True)
        ]
    histories = histories_of(history, None if batch is None else len(batch))
    feeder = _feeder_of(session, len(prompts), combined, encoding, picturing)
    tokens = [
        tokens_of(prompt, find_tokenizer, is_start=not row.start)
        for prompt, row in zip(prompts, feeder.rows, strict=True)
    ]
    if places is not None:
        tokens = [
            places.in_tokens(
                one, row, lambda text: find_tokenizer().encode(text, False)
            )
            for one, row in zip(tokens, grids, strict=True)
        ]
    feeder.check_prompts(tokens)
    first = [one for one, row in zip(given, feeder.rows, strict=True) if not row.start]
    if texts := [one for one in first if isinstance(one, str)]:
        warn_if_begun_twice(texts, find_tokenizer(), stacklevel=2)
    warn_if_equal(combined, n, stacklevel=2)
    source = _source_of(feeder, whole, combined, draft, histories, draft_tokens)
    tokens, histories = tokens * spread, [*histories] * spread
    matchers = matchers_of(session, combined, feeder.vocabulary)
    kind = BeamAnswer if combined.num_beams > 1 else Answer
    answers = [
        kind(
            tokens[number],
            row,
            combined,
            find_tokenizer,
            histories[number],
            number,
            matcher=matchers(),
        )
        for number, row in enumerate(source.rows)
    ]
    made = Generation if batch is None and n is None else BatchGeneration
    return made(source, answers, combined)


def _feeder_of(
    session: Session,
    rows: int,
    settings: GenerationSettings,
    encoding: Encoding | None,
    picturing: Picturing | None,
) -> Feeder:
    """Return the feeder of a generation; it watches prompts if settings ask for it.

    Raises:
        BadSetting: as `Feeder`; or log probabilities are asked for of a prompt with an
            encoder or pictures.
        UnknownName: the program lacks a role.
        Poisoned, Busy, Closed, Forked: as `Session.call`.
    """
    count = settings.prompt_logprobs
    if count is None:
        return Feeder(session, rows, encoding=encoding, picturing=picturing)
    if encoding is not None or picturing is not None:
        found = "an encoder" if encoding is not None else "pictures"
        expected = "no value: prompts with an encoder or pictures have none"
        raise BadSetting(name="prompt_logprobs", expected=expected, found=found)
    return WatchedFeeder(session, rows, count)


def _source_of(
    feeder: Feeder,
    session: Session,
    settings: GenerationSettings,
    draft: Session | Literal["prompt"] | None,
    histories: Sequence[Sequence[int]],
    draft_tokens: int | None,
) -> Decoding:
    """Return the source of tokens, given a feeder of the session or of its seed.

    Raises:
        KvcError: as `start_drafting`.
    """
    if draft is not None:
        return start_drafting(feeder, draft, histories, draft_tokens)
    if feeder.session is not session:
        return spread_over(session, feeder, settings)
    return Decoding(feeder)


def _tokenizer_of(session: Session) -> Tokenizer:
    """Return the bundle's tokenizer, read once for all sessions of a program."""
    key = session.program_key
    if key not in _TOKENIZERS:
        _TOKENIZERS[key] = tokenizer_of(session)
    return _TOKENIZERS[key]
