"""Run a language model on sequences of tokens, by each method that takes tokens.

In: a text, or a model that generates texts. Out: sequences that fit a session, and
calls of prefill in chunks, of decode, and of prefill_all.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from kvc.runtime.calls.chunks import ChunkSizes, chunk_sizes
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.scoring.scorers import ByChunks
from kvc.runtime.sessions.methods import find_all_logits, find_roles
from kvc.runtime.sessions.program import Program
from kvc.runtime.sessions.session import Session
from kvc.runtime.tokenizers import tokenizer_of
from kvc.schema.container import Progress
from kvc.schema.errors import BadSamples, KvcError

Sequences = Sequence[Sequence[int]]

MOST_SEQUENCES: Final = 8
LENGTH: Final = 256  # tokens of a sequence, unless a method takes at least more
_STEPS: Final = 16  # tokens of a sequence that decode runs
_SEED: Final = 0
_GENERATED: Final = 8  # the number of generated sequences


def reads_tokens(program: Program) -> bool:
    """Tell whether a program reads a prompt and continues it."""
    roles = {method.role for method in program.methods.values()}
    return {"prefill", "decode"} <= roles and "encode" not in roles


def text_sequences(source: str, text: str, program: Program, most: int) -> Sequences:
    """Return sequences of tokens that cover a text, or evenly spaced parts of it.

    `most` is the greatest number of sequences.

    Raises:
        BadSamples: the program does not read text.
        KvcError: as `tokenizer_of`.
    """
    _check_reads(source, program)
    try:
        tokens = tokenizer_of(program).encode(text)
    except KvcError as error:
        reason = f"the model's tokenizer does not take the text: {error}"
        raise BadSamples(source=source, reason=reason) from error
    length = _length(program)
    if len(tokens) < 2:
        raise BadSamples(source=source, reason="the text has one token, 2 are needed")
    count = max(1, min(most, len(tokens) // length))
    starts = np.linspace(0, max(0, len(tokens) - length), count).astype(int).tolist()
    return [tuple(tokens[at : at + length]) for at in starts]


def generate_sequences(source: str, program: Program, progress: Progress) -> Sequences:
    """Return token sequences that a model generates, each from a random first token.

    Tokens are sampled by the model's probabilities, with a fixed seed.

    Raises:
        BadSamples: the program does not continue text.
    """
    _check_reads(source, program)
    random, made = np.random.default_rng(_SEED), list[Sequence[int]]()
    length = _length(program)
    with program.session() as session:
        for number in range(_GENERATED):
            item = f"text {number + 1} of {_GENERATED}"
            progress("generate", number, _GENERATED, item)
            session.reset()
            made.append(_generated(session, random, length))
    return made


def _generated(
    session: Session, random: np.random.Generator, length: int
) -> Sequence[int]:
    feeder = Feeder(session)
    assert isinstance(feeder.vocabulary, int)
    tokens = [int(random.integers(feeder.vocabulary))]
    logits = feeder.feed_prompts([tokens])
    while len(tokens) < length:
        exact = logits[-1].astype(np.float64)
        weights = np.exp(exact - exact.max())
        ends = np.cumsum(weights / weights.sum())
        tokens.append(min(int(np.searchsorted(ends, random.random())), len(ends) - 1))
        logits = feeder.feed([tokens[-1]])
    return tuple(tokens)


def run_sequences(
    source: str, program: Program, sequences: Sequences, progress: Progress
) -> None:
    """Run token sequences by each method of the roles prefill, decode, prefill_all.

    Raises:
        BadSamples: a token is not in the vocabulary, or a sequence does not fit.
        KvcError: as `Session.call`.
    """
    _check_reads(source, program)
    with program.session() as session:
        sizes = _prefill_sizes(session)
        for tokens in _with_progress(sequences, progress):
            _run_sequence(source, session, tokens, min(_STEPS, len(tokens) // 2))
            for one in sizes:
                if one.least > len(tokens):
                    continue
                session.reset()
                count = one.greatest(len(tokens))
                Feeder(session).run(one.method, [tokens[:count]])
            appending = find_all_logits(session)
            if appending is not None:
                session.reset()
                for _ in ByChunks(session, appending).logits(tokens, 1):
                    pass


def read_sequences(
    source: str, program: Program, sequences: Sequences, progress: Progress
) -> None:
    """Run sequences as prompts; decode runs the last token of the first sequence.

    Raises:
        BadSamples: a token is not in the vocabulary, or a sequence does not fit.
        KvcError: as `Session.call`.
    """
    _check_reads(source, program)
    with program.session() as session:
        steps = 1
        for tokens in _with_progress(sequences, progress):
            _run_sequence(source, session, tokens, steps)
            steps = 0


def _with_progress(sequences: Sequences, progress: Progress) -> Iterator[Sequence[int]]:
    for number, tokens in enumerate(sequences):
        item = f"text {number + 1} of {len(sequences)}"
        progress("calibrate", number, len(sequences), item)
        yield tokens


def _run_sequence(
    source: str, session: Session, tokens: Sequence[int], steps: int
) -> None:
    """Run a sequence: its last `steps` tokens one by one, the others in chunks."""
    session.reset()
    feeder = Feeder(session)
    try:
        feeder.check_prompts([tokens])
    except KvcError as error:
        raise BadSamples(source=source, reason=str(error)) from error
    feeder.feed_prompts([tokens[: len(tokens) - steps]])
    for token in tokens[len(tokens) - steps :]:
        feeder.feed([token])


def _prefill_sizes(session: Session) -> list[ChunkSizes]:
    longest = session.longest_call
    methods = find_roles(session, "prefill")
    return [chunk_sizes(one, session.symbols, longest) for one in methods]


def _length(program: Program) -> int:
    """Return a sequence length such that each method gets at least its least count.

    The method with all logits runs neither the first token nor the last.
    """
    with program.session() as session:
        room = session.capacity
        least = (sizes.least + 2 for sizes in _prefill_sizes(session))
        length = max(LENGTH, *least)
    return length if room is None else min(length, room)


def _check_reads(source: str, program: Program) -> None:
    if not reads_tokens(program):
        reason = (
            "the model has no methods of the roles prefill and decode that read "
            "tokens; an embedding model takes a text, a speech model a sound (.wav), "
            "any other model arrays with the names of its inputs, in a .npz file"
        )
        raise BadSamples(source=source, reason=reason)
