"""`evaluate`: how well a bundle predicts a text, as `kvc eval` tells it.

`subject_of` reads a text with the tokenizer of a program, `score.py` scores its tokens,
and `evaluation_of` tells the result per byte and per token.
"""

import codecs
import os
from collections.abc import Sequence

from kvc.runtime.scoring.score import Score, ScoreProgress, score_tokens
from kvc.runtime.sessions.program import Program
from kvc.runtime.tokenizers import Tokenizer, tokenizer_of
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen
from kvc.schema.uses import PACKED


@frozen
class Evaluation:
    """How well a bundle predicts a text.

    Attributes:
        bundle, recipe: path of the bundle, and name of its recipe.
        weights_nbytes: bytes of the weights, each weight once.
        bits_per_byte: mean bits for each byte of text; null if the bundle has no
            tokenizer, since the bytes of a token are unknown then.
        perplexity, bits_per_token: mean perplexity and mean bits for each token.
        tokens, scored_nbytes: number of scored tokens and of their bytes; the bytes are
            null if the bundle has no tokenizer.
        window, stride: length of the window and of its steps, in tokens.
        method: name of the method that computed the logits.
        tokens_per_second: scored tokens per second of running and scoring. The time of
            loading, which the first bundle of a process pays for later ones, is left
            out.
        divergence, divergence_error: mean Kullback-Leibler divergence from the bundle
            of `--against`, in nats per token, and its standard error; null without that
            bundle.
        same_tokens: share of tokens for which both bundles find the same token
            likeliest; null without `--against`.
    """

    bundle: str
    recipe: str
    weights_nbytes: int
    bits_per_byte: float | None
    perplexity: float
    bits_per_token: float
    tokens: int
    scored_nbytes: int | None
    window: int
    stride: int
    method: str
    tokens_per_second: float
    divergence: float | None = None
    divergence_error: float | None = None
    same_tokens: float | None = None


@frozen
class Subject:
    """What is evaluated: a bundle, and a text as its tokenizer reads it.

    Attributes:
        bundle, recipe, weights_nbytes: as those of `Evaluation`.
        tokens: the tokens of the text.
        start: the tokens that the tokenizer puts before a text.
        scored_nbytes: the bytes of the scored tokens; None without a tokenizer.
    """

    bundle: str
    recipe: str
    weights_nbytes: int
    tokens: Sequence[int]
    start: Sequence[int]
    scored_nbytes: int | None


def evaluate(
    bundle: str,
    program: Program,
    raw: bytes,
    window: int | None = None,
    stride: int | None = None,
    progress: ScoreProgress | None = None,
    against: Program | None = None,
) -> Evaluation:
    """Measure a bundle on a text, and compare it with `against` if that is given.

    Raises:
        KvcError: as `subject_of` and `score_tokens`.
    """
    told = subject_of(bundle, program, raw, against)
    score = score_tokens(
        program, told.tokens, window, stride, told.start, progress, against
    )
    return evaluation_of(told, score)


def subject_of(
    bundle: str, program: Program, raw: bytes, against: Program | None = None
) -> Subject:
    """Read the bytes of a text with the tokenizer of a program.

    Raises:
        BadSetting: the tokenizer of `against` turns the text into other tokens.
        KvcError: as `tokenizer_of`.
    """
    tokenizer = tokenizer_of(program)
    # A character that was cut off is left out; other bytes stay.
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(raw)
    tokens, start = tokenizer.encode(text, special=False), _start(tokenizer)
    nbytes = None
    if "tokenizer" in program.metadata:
        if against is not None:
            _check_alike(against, text, tokens, bundle)
        first = _nbytes(tokenizer, tokens) if tokens and not start else 0
        nbytes = len(os.fsencode(text)) - first
    return Subject(
        bundle,
        program.provenance.recipe,
        _weights_nbytes(program),
        tokens,
        start,
        nbytes,
    )


def evaluation_of(told: Subject, score: Score) -> Evaluation:
    """Return what a score of all tokens of a text tells."""
    nbytes, divergence = told.scored_nbytes, score.divergence
    return Evaluation(
        bundle=told.bundle,
        recipe=told.recipe,
        weights_nbytes=told.weights_nbytes,
        bits_per_byte=score.bits / nbytes if nbytes else None,
        perplexity=score.perplexity,
        bits_per_token=score.bits_per_token,
        tokens=score.tokens,
        scored_nbytes=nbytes,
        window=score.window,
        stride=score.stride,
        method=score.method,
        tokens_per_second=score.tokens / score.seconds,
        divergence=divergence.nats if divergence else None,
        divergence_error=divergence.error if divergence else None,
        same_tokens=divergence.same if divergence else None,
    )


def _check_alike(
    against: Program, text: str, tokens: Sequence[int], bundle: str
) -> None:
    """Check that the tokenizer of `against`, if any, turns a text into the same tokens.

    Raises:
        BadSetting: the tokens differ.
    """
    if "tokenizer" not in against.metadata:
        return
    if list(tokenizer_of(against).encode(text, special=False)) != list(tokens):
        expected = f"a bundle to which the text is the same tokens as to {bundle}"
        raise BadSetting(name="against", expected=expected, found="other tokens")


def _start(tokenizer: Tokenizer) -> Sequence[int]:
    """Return the special tokens that a tokenizer puts before a text."""
    plain, special = (list(tokenizer.encode("1", s)) for s in (False, True))
    for at in range(len(special) - len(plain) + 1):
        if special[at : at + len(plain)] == plain:
            return special[:at]
    return []


def _nbytes(tokenizer: Tokenizer, tokens: Sequence[int]) -> int:
    """Return the bytes of text in the first token, which is not scored."""
    stream = tokenizer.stream()
    first = stream.push(tokens[0]) + stream.finish()
    # A part of a character has no text of its own.
    return 1 if "\ufffd" in first else len(os.fsencode(first))


def _weights_nbytes(program: Program) -> int:
    """Return the bytes of the data that methods use, without packed copies."""
    return sum(
        blob.nbytes
        for blob in program.residency().blobs
        if blob.methods and not blob.names[0].startswith(PACKED)
    )
