"""Compare a tiny model of transformers with its bundle: logits, token by token.

The measure is the largest difference of two logits, divided by the standard deviation
of the model's logits. The model itself gives the expected logits: it runs on the whole
text at once, in its eager attention and without a cache.
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hf_models import VOCAB, build
from transformers import PreTrainedModel

from kvc.compiler import CacheConfig, export_hf
from kvc.recipes import Recipe
from kvc.runtime import Session, load

STEPS = 40
LENGTHS = (1, 2, 5, 12)
CHUNKS = (5, 1, 6)
CAPACITY = 64
# Logits of two float32 layers differ by 1e-6 to 3e-5 of their spread when sums are
# taken in another order; a wrong rotation, scale or row changes them by 5e-3 and more.
TOLERANCE = 1e-4
NOTICED = 1e-3


@dataclass(frozen=True, slots=True)
class Parity:
    prefill: float  # largest difference of a prefill, of any length, and in chunks
    decode: float  # largest difference of 40 steps after it
    agreement: float  # share of positions with the same best token
    control: float  # the least difference that a wrong row of one layer's cache makes


def text(length: int) -> np.ndarray:
    """Return tokens int64 [1, length]: the first `length` of one fixed random text."""
    return np.random.default_rng(7).integers(3, VOCAB, (1, 4096))[:, :length]


def eager_logits(model: PreTrainedModel, tokens: np.ndarray) -> np.ndarray:
    """Return the model's logits float32 [seq, vocab] of tokens, without a cache."""
    with torch.no_grad():
        made = model(input_ids=torch.from_numpy(tokens), use_cache=False)
    return made.logits[0].numpy()


def compare(
    name: str,
    folder: Path,
    lengths: Sequence[int] = LENGTHS,
    steps: int = STEPS,
    recipe: str | Recipe = "fp32",
    shallow: bool = False,
) -> Parity:
    """Export a model of `hf_models`, and compare its bundle with the eager model.

    The model runs on `max(lengths) + steps` tokens. The control of the `Parity` that is
    returned says how much a zeroed row of a cache would show.
    """
    model = build(name, shallow)
    tokens = text(max(lengths) + steps)
    wanted = eager_logits(model, tokens)
    path = folder / "model.kvc"
    cache, chunk = CacheConfig(CAPACITY), max(lengths)  # so that windows are rings
    export_hf(model, recipe=recipe, cache=cache, prefill_chunk=chunk).save(path)
    with load(path) as program, program.session(capacity=CAPACITY) as session:
        return _measure(session, tokens, wanted, lengths, steps)


def _measure(session: Session, tokens, wanted, lengths, steps: int) -> Parity:
    spread = float(wanted.std())
    prefills = [prefilled(session, tokens, (n,))[-1] - wanted[n - 1] for n in lengths]
    pieces = prefilled(session, tokens, CHUNKS)
    ends = np.cumsum(CHUNKS) - 1
    prefills += [piece - wanted[end] for piece, end in zip(pieces, ends, strict=True)]
    begin = sum(CHUNKS)
    found = decoded(session, tokens, begin, begin + steps)
    expected = wanted[begin : begin + steps]
    best = found.argmax(1) == expected.argmax(1)
    return Parity(
        prefill=float(np.abs(prefills).max()) / spread,
        decode=float(np.abs(found - expected).max()) / spread,
        agreement=float(best.mean()),
        control=min(_controls(session, tokens, wanted)) / spread,
    )


def prefilled(
    session: Session, tokens: np.ndarray, chunks: Sequence[int]
) -> list[np.ndarray]:
    session.reset()
    return fed(session, tokens, chunks)


def fed(
    session: Session, tokens: np.ndarray, chunks: Sequence[int]
) -> list[np.ndarray]:
    ends = np.cumsum(chunks)
    pieces = [tokens[:, e - n : e] for e, n in zip(ends, chunks, strict=True)]
    return [session.prefill(piece)[0].copy() for piece in pieces]


def decoded(session: Session, tokens: np.ndarray, begin: int, end: int) -> np.ndarray:
    steps = [tokens[:, place : place + 1] for place in range(begin, end)]
    return np.stack([session.decode(step)[0].copy() for step in steps])


def _controls(session, tokens, wanted) -> Iterator[float]:
    """Yield, for each layer, how far logits are from `wanted` once a row is zeroed.

    The row before the last of the layer's cache is zeroed, and the three next tokens
    are decoded. Where a layer is recurrent, the first channel of its states is zeroed
    instead.
    """
    held = 10
    for layer in layers_of(session):
        prefilled(session, tokens, (held,))
        for name in layer:
            if name.endswith(("keys", "values", "latents")):
                zero_row(session.state[name], held - 2)
            else:
                zero(session.state[name][0, :1])
        got = decoded(session, tokens, held, held + 3)
        yield float(np.abs(got - wanted[held : held + 3]).max())


def layers_of(session: Session) -> list[list[str]]:
    layers: dict[str, list[str]] = {}
    for name in session.state:
        if "cache" in name:
            layer, _, kind = name.rpartition(".")
            of = layer if kind in ("keys", "values") else f"{layer}.states"
            layers.setdefault(of, []).append(name)
    return list(layers.values())


def zero_row(cache: np.ndarray, row: int, batch_row: int = 0) -> None:
    """Zero row `row` of each head of a cache [batch, heads, slots, ...].

    The array is a read-only view of a session's state: the bytes below it are changed.
    """
    for head in cache[batch_row]:
        zero(head[row : row + 1])


def zero(place: np.ndarray) -> None:
    """Zero the memory of a read-only array that a session returned."""
    assert place.flags.c_contiguous
    ctypes.memset(place.ctypes.data, 0, place.nbytes)


# How many tokens each of three rows gets at each call, on either side of every window;
# the first row is then full, and the others go a step further.
_APART = ((1, 0, 1),) * 3 + ((0, 1, 0),) * 2
RAGGED = (
    (9, 4, 0), (2, 9, 3), *_APART, (0, 2, 2), (7, 8, 9), *_APART, (8, 3, 1), (0, 1, 1),
)  # fmt: skip
ROW_CHUNK = 9  # the most of one call, so that rings are shorter than the text


def compare_rows(name: str, folder: Path, shallow: bool = False) -> float:
    """Return how far a batch of three rows of different lengths is from the model.

    Three rows of a batch go on by different numbers of tokens in each call, and padding
    gets invalid tokens. The result is the largest difference from the logits that the
    eager model gives for each row alone, in standard deviations of those logits.
    """
    model, path = build(name, shallow), folder / "rows.kvc"
    capacity = sum(counts[0] for counts in RAGGED)
    cache = CacheConfig(capacity, batch=3)
    export_hf(model, cache=cache, prefill_chunk=ROW_CHUNK).save(path)
    tokens = np.random.default_rng(5).integers(3, VOCAB, (3, 1, capacity))
    wanted = [eager_logits(model, row) for row in tokens]
    with load(path) as program, program.session(batch=3) as session:
        found = list(_row_differences(session, tokens[:, 0], wanted))
        assert session.position[0] == session.capacity
    return max(found) / float(np.std(wanted))


def add_rows(
    session: Session, tokens: Sequence[np.ndarray], held: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Append `counts[row]` tokens to each row, and return logits [rows, vocab].

    `held[row]` is where a row's new tokens begin in `tokens[row]`. Padding gets a
    number that is no token of the vocabulary.
    """
    given = np.full((len(tokens), counts.max()), 1 << 20)
    for row, (begin, count) in enumerate(zip(held, counts, strict=True)):
        given[row, :count] = tokens[row][begin : begin + count]
    if counts.max() == 1:
        return session.decode(given, counts.astype(bool))
    return session.prefill(given, counts)


def _row_differences(session, tokens, wanted) -> Iterator[float]:
    held = np.zeros(3, np.int64)
    for counts in np.array(RAGGED):
        logits = add_rows(session, tokens, held, counts)
        held += counts
        for row in np.flatnonzero(counts):
            yield float(np.abs(logits[row] - wanted[row][held[row] - 1]).max())
