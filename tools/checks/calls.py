"""The calls that a check makes of a bundle: the same ones on every machine.

In: an open program. Out: results, each with a name. A language model reads a prompt,
whole and in pieces, in two sessions by turns, and is rewound; other methods are called
twice each, in their order, on one session, with made-up arguments.
"""

import json
from collections.abc import Iterator, Mapping

import numpy as np

from kvc.runtime import Program, Session
from kvc.runtime.arrays import Array
from kvc.runtime.calls.entries import vocabulary_of
from kvc.runtime.generation.feeding import Feeder
from kvc.schema.dtypes import DType
from kvc.schema.errors import KvcError, NotRewindable
from kvc.schema.model import Method
from kvc.schema.trees import match, unflatten
from kvc.schema.types import TensorType, evaluate

Result = tuple[str, Array | str]

_SEED = 20
_PROMPT, _PIECE, _STEPS, _BACK = 12, 5, 3, 2
_SIZE = 4  # of what a caller chooses, where it may be that


def sample_results(program: Program) -> Iterator[Result]:
    """Make the calls; yield what each gives, or the kind of error that it ends in.

    Raises:
        KvcError: no session can be opened.
    """
    roles = {method.role for method in program.methods.values()}
    with program.session() as session:
        room = session.capacity
    fits = room is None or room >= _PROMPT + _STEPS
    if fits and {"prefill", "decode"} <= roles and "encode" not in roles:
        yield from _language(program)
    else:
        yield from _one_by_one(program)


def _language(program: Program) -> Iterator[Result]:
    with program.session() as first, program.session() as second:
        whole, apart = _feeder(first), _feeder(second)
        tokens = _tokens(whole)
        prompt, steps = tokens[:-_STEPS], tokens[-_STEPS:]
        yield "a prompt", whole.feed_prompts([prompt] * len(whole.rows))
        piece = prompt[:_PIECE]
        yield "its beginning, elsewhere", apart.feed_prompts([piece] * len(apart.rows))
        for number, token in enumerate(steps, 1):
            yield f"token {number} after it", whole.feed([token] * len(whole.rows))
        yield "its end, token by token", _feed(apart, prompt[_PIECE:])
        yield from _again(first, steps)


def _feeder(session: Session) -> Feeder:
    return Feeder(session, len(session.pending))


def _tokens(feeder: Feeder) -> list[int]:
    """Return the tokens of a prompt, and those after it."""
    known = feeder.vocabulary if isinstance(feeder.vocabulary, int) else 1
    count = _PROMPT + _STEPS
    tokens: list[int] = (
        np.random.default_rng(_SEED).integers(0, known, count, np.int64).tolist()
    )
    return tokens


def _again(session: Session, steps: list[int]) -> Iterator[Result]:
    """Yield what a session gives after it went back."""
    try:
        session.rewind(_BACK)
    except NotRewindable as error:
        yield "going back", type(error).__name__
        return
    feeder = _feeder(session)
    yield "the same tokens after going back", _feed(feeder, steps[-_BACK:])


def _feed(feeder: Feeder, tokens: list[int]) -> Array:
    """Feed tokens one by one; return the logits after the last."""
    *before, last = tokens
    for token in before:
        feeder.feed([token] * len(feeder.rows))
    return feeder.feed([last] * len(feeder.rows))


def _one_by_one(program: Program) -> Iterator[Result]:
    random = np.random.default_rng(_SEED)
    with program.session() as session:
        for method in session.methods.values():
            for turn in ("first", "second"):
                name = f"{method.name}, {turn} call"
                arguments = arguments_at(method, _sizes(session), random)
                try:
                    given = session.call(method.name, **arguments)
                except KvcError as error:
                    yield name, type(error).__name__
                    break
                for number, leaf in enumerate(match(method.output_tree, given)):
                    yield f"{name}, result {number}", np.asarray(leaf)


def _sizes(session: Session) -> dict[str, int]:
    return {
        name: symbol.sizes[0]
        if symbol.sizes
        else min(max(_SIZE, symbol.lower), symbol.upper)
        for name, symbol in session.symbols.items()
    }


def arguments_at(
    method: Method, sizes: Mapping[str, int], random: np.random.Generator
) -> dict[str, object]:
    """Make arguments up: random numbers, True for what is a mask.

    Integers are rows of the table in which they are looked up, such as tokens, or else
    0 and 1. Where the first is tokens [batch, seq], integers [batch] after it are how
    many of these count: all.
    """
    graph = method.graph
    kinds = [graph.values[value].type for value in graph.inputs]
    below = [vocabulary_of(method, value) or 2 for value in graph.inputs]
    leaves = [
        _made_up(kind, sizes, random, most)
        for kind, most in zip(kinds, below, strict=True)
    ]
    if kinds and _is_whole(kinds[0], 2):
        batch, seq = kinds[0].dims
        for number, kind in enumerate(kinds):
            if _is_whole(kind, 1) and kind.dims == (batch,):
                leaves[number] = np.full_like(leaves[number], evaluate(seq, sizes))
    call = json.loads(method.input_tree)
    return {
        name: unflatten(json.dumps(tree), leaves) for name, tree in call["arguments"]
    }


def _is_whole(kind: TensorType, dims: int) -> bool:
    """Tell whether a type is integers of so many dimensions."""
    return kind.dtype in (DType.INT32, DType.INT64) and len(kind.dims) == dims


def _made_up(
    kind: TensorType, sizes: Mapping[str, int], random: np.random.Generator, below: int
) -> Array:
    shape, dtype = kind.shape(sizes), kind.dtype
    if dtype is DType.BOOL:
        return np.ones(shape, np.bool_)
    if dtype.is_floating:
        return random.standard_normal(shape).astype(dtype.numpy)
    return random.integers(0, below, shape).astype(dtype.numpy)
