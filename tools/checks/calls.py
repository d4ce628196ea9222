"""The calls that a check makes of a bundle, the same calls on every machine.

In: an open program. Out: results, each with a name. If the program is a language model,
two sessions take turns in reading a prompt, one as a whole and one in pieces, and the
first is then rewound. If it is another model, each method is called twice on one
session, in the program's order of methods, with made-up arguments. The final contents
of the states are results, too.

Each short call runs in a new session: it feeds two tokens, or calls each method once.
Rounding errors add up so little in a short call that many short calls give the same
result on all machines, to the last digits.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvc.runtime import Program, Session
from kvc.runtime.calls.entries import vocabulary_of
from kvc.runtime.generation.feeding import Feeder
from kvc.runtime.memory.arrays import Array
from kvc.schema.dtypes import DType
from kvc.schema.errors import KvcError, NotRewindable
from kvc.schema.model import Method
from kvc.schema.trees import match, unflatten
from kvc.schema.types import TensorType, evaluate

_SEED: Final = 20
_PROMPT, _PIECE, _STEPS, _BACK = 12, 5, 3, 2
_HELD: Final = _PROMPT + _STEPS
_SIZE: Final = 4  # size of symbols that a caller chooses, within their bounds
_SHORT: Final = 4096  # most elements of all arguments of a short call


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a call; several results can have the same name.

    Attributes:
        name: name of the result.
        given: numbers of the result, or the kind of error that the call ended in.
        short: whether the result comes from a short call.
        held: whether the result is the content of a state.
    """

    name: str
    given: Array | str
    short: bool = False
    held: bool = False


def sample_results(program: Program, short: Sequence[int]) -> Iterator[Result]:
    """Make the calls; yield the results of each, or the kind of error that ended it.

    Args:
        program: open program.
        short: numbers of the short calls, which are made first.

    Raises:
        KvcError: no session can be opened.
    """
    yield from short_results(program, short)
    if _is_language(program):
        yield from _language(program)
    else:
        yield from _one_by_one(program)


def short_results(program: Program, numbers: Sequence[int]) -> Iterator[Result]:
    """Make short calls, each in a session of its own.

    Args:
        program: open program. There are no short calls if its methods take many
            elements.
        numbers: numbers of the short calls to make; each number stands for other tokens
            or arguments.

    Raises:
        KvcError: no session can be opened.
    """
    language = _is_language(program)
    for number in numbers:
        random = np.random.default_rng([_SEED, number])
        with program.session() as session:
            if language:
                yield from _two_tokens(program, session, random)
            elif _count_taken(session) <= _SHORT:
                yield from _each_once(program, session, random)


def _is_language(program: Program) -> bool:
    """Tell whether a program reads tokens, and has room for the tokens of a check."""
    roles = {method.role for method in program.methods.values()}
    with program.session() as session:
        room = session.capacity
    fits = room is None or room >= _HELD
    return fits and {"prefill", "decode"} <= roles and "encode" not in roles


def _two_tokens(
    program: Program, session: Session, random: np.random.Generator
) -> Iterator[Result]:
    feeder = _feeder(session)
    first, second = _tokens(feeder, random, 2)
    feeder.feed_prompts([[first]] * len(feeder.rows))
    logits = feeder.feed([second] * len(feeder.rows))
    for name, content in session.state.items():
        held = _first_slots(program, name, content, 2)
        yield Result(f"{name} after two tokens", held, short=True, held=True)
    yield Result("two tokens", logits, short=True)


def _language(program: Program) -> Iterator[Result]:
    with program.session() as first, program.session() as second:
        whole, apart = _feeder(first), _feeder(second)
        tokens = _tokens(whole, np.random.default_rng(_SEED), _HELD)
        prompt, steps = tokens[:-_STEPS], tokens[-_STEPS:]
        rows = len(whole.rows)
        yield Result("a prompt", whole.feed_prompts([prompt] * rows))
        piece = prompt[:_PIECE]
        yield Result("its beginning, elsewhere", apart.feed_prompts([piece] * rows))
        for number, token in enumerate(steps, 1):
            yield Result(f"token {number} after it", whole.feed([token] * rows))
        yield Result("its end, token by token", _feed(apart, prompt[_PIECE:]))
        yield from _again(first, steps)
        yield from _held(program, first)


def _feeder(session: Session) -> Feeder:
    return Feeder(session, len(session.pending))


def _tokens(feeder: Feeder, random: np.random.Generator, count: int) -> list[int]:
    known = feeder.vocabulary if isinstance(feeder.vocabulary, int) else 1
    tokens: list[int] = random.integers(0, known, count, np.int64).tolist()
    return tokens


def _again(session: Session, steps: list[int]) -> Iterator[Result]:
    """Rewind a session, and yield the results of feeding its tokens again."""
    try:
        session.rewind(_BACK)
    except NotRewindable as error:
        yield Result("going back", type(error).__name__)
        return
    given = _feed(_feeder(session), steps[-_BACK:])
    yield Result("the same tokens after going back", given)


def _feed(feeder: Feeder, tokens: list[int]) -> Array:
    """Feed tokens one by one; return the logits after the last."""
    *before, last = tokens
    for token in before:
        feeder.feed([token] * len(feeder.rows))
    return feeder.feed([last] * len(feeder.rows))


def _held(program: Program, session: Session) -> Iterator[Result]:
    """Yield the final contents of states; the first slots are results of their own."""
    for name, content in session.state.items():
        first = _first_slots(program, name, content, _HELD)
        axis = program.states[name].axis
        for slot in [first] if axis is None else np.moveaxis(first, axis, 0):
            yield Result(f"{name} in the end", slot, held=True)


def _first_slots(program: Program, name: str, content: Array, count: int) -> Array:
    """Return a copy of a state's first `count` slots, or of a state without slots."""
    axis = program.states[name].axis
    if axis is None:
        return content.copy()
    return np.take(content, range(min(count, content.shape[axis])), axis)


def _one_by_one(program: Program) -> Iterator[Result]:
    random = np.random.default_rng(_SEED)
    with program.session() as session:
        for method in session.methods.values():
            for turn in ("first", "second"):
                name = f"{method.name}, {turn} call"
                given = list(_called(session, method, random))
                yield from (Result(name + rest, array) for rest, array in given)
                if any(isinstance(array, str) for _, array in given):
                    break
        yield from _held(program, session)


def _each_once(
    program: Program, session: Session, random: np.random.Generator
) -> Iterator[Result]:
    for method in session.methods.values():
        for rest, given in _called(session, method, random):
            yield Result(f"{method.name} alone{rest}", given, short=True)
    for name, content in session.state.items():
        held = _first_slots(program, name, content, _HELD)
        yield Result(f"{name} after one call", held, short=True, held=True)


def _called(
    session: Session, method: Method, random: np.random.Generator
) -> Iterator[tuple[str, Array | str]]:
    """Call a method; yield each result or error, with the suffix of its name."""
    try:
        given = session.call(
            method.name, **arguments_at(method, _sizes(session), random)
        )
    except KvcError as error:
        yield "", type(error).__name__
        return
    for number, leaf in enumerate(match(method.output_tree, given)):
        yield f", result {number}", np.asarray(leaf)


def _count_taken(session: Session) -> int:
    """Return how many elements the arguments of all methods have in total."""
    sizes = _sizes(session)
    graphs = [method.graph for method in session.methods.values()]
    taken = [graph.values[value].type for graph in graphs for value in graph.inputs]
    return sum(math.prod(kind.shape(sizes)) for kind in taken)


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
    """Make up arguments: random numbers, and True for masks.

    Integers that index a table, such as tokens, are random rows of that table; other
    integers are 0 or 1. If the first argument is tokens [batch, seq], an integer
    argument [batch] after it is the number of valid tokens, and is `seq`.
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
    """Tell whether a type is that of an integer tensor with `dims` dimensions."""
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
