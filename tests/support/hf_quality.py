"""Measure how good each recipe is for a tiny model of transformers, and if it is right.

A recipe's bundle is compared twice. The comparison with the model in float32 says how
good the recipe is. The comparison with a model that rounds as the recipe does
(`hf_rounded`) says whether the bundle computes what the recipe says: a small error in
an int8 cache shows only there. The control of the second comparison is the difference
that one row makes that is wrong by one quantization step.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_models import VOCAB, build
from hf_parity import (
    CAPACITY,
    CHUNKS,
    LENGTHS,
    STEPS,
    decoded,
    eager_logits,
    layers_of,
    prefilled,
    text,
)
from hf_rounded import rounded_logits, text_without_ties

from kvc.compiler import CacheConfig, Method, export_hf, pipeline
from kvc.compiler.trace import CapturedMethod, capture
from kvc.recipes import load_recipe
from kvc.runtime import Session, load
from kvc.schema.errors import CacheDtypeRefused
from kvc.schema.model import Program, StateKind

# Steps after the prefill of the text without ties, past every window.
STEPS_ROUNDED = 8
# Of a cache of float16 the rows of a text cannot all be kept from ties.
EQUAL = {"float32": 2e-5, "int8": 2e-5, "float16": 2e-4}


@dataclass(frozen=True, slots=True)
class Way:
    recipe: str
    cache: str = "float32"

    def __str__(self) -> str:
        plain = self.cache == "float32"
        return self.recipe if plain else f"{self.recipe}, {self.cache} cache"


WAYS = (
    *map(Way, ("xnnpack_q8", "xnnpack_q4", "cpu_q8", "cpu_q4", "cpu_bf16")),
    Way("cpu_fp32", "int8"),
    Way("cpu_fp32", "float16"),
)


@dataclass(frozen=True, slots=True)
class Quality:
    cosine: float  # the mean cosine of its logits and those of the model in float32
    agreement: float  # share of positions with the same best token
    # the largest difference from the model that rounds as it does, over the largest
    # logit
    rounded: float
    # that of a cache with a row that is a step off, the smallest of layers
    control: float


@dataclass(frozen=True, slots=True)
class Held:
    """The size and kinds of the states of a session, with float32 caches."""

    kinds: tuple[str, ...]  # of states, in words
    per_token: int  # bytes for each token
    fixed: int  # bytes however long the text is, rings included


def qualities(
    name: str, folder: Path, ways: Sequence[Way] = WAYS, shallow: bool = False
) -> tuple[Held, dict[Way, Quality | None]]:
    """Return what a session holds with float32 caches, and the quality of each way.

    The quality is None where the model cannot have a cache of the way's dtype.
    """
    model = build(name, shallow)
    tokens = text(max(LENGTHS) + STEPS)
    exact = eager_logits(model, tokens)
    with _traced_once():
        found = {way: _quality(model, way, folder, tokens, exact) for way in ways}
        bundle = export_hf(
            model, cache=CacheConfig(CAPACITY), prefill_chunk=max(LENGTHS)
        )
    return held(bundle.program), found


def _quality(model, way: Way, folder: Path, tokens, exact) -> Quality | None:
    recipe, cache = load_recipe(way.recipe), CacheConfig(CAPACITY, dtype=way.cache)
    chunk, path = max(LENGTHS), folder / "model.kvc"
    try:
        bundle = export_hf(model, recipe=recipe, cache=cache, prefill_chunk=chunk)
    except CacheDtypeRefused:
        return None
    bundle.save(path)
    with load(path) as program, program.session(capacity=CAPACITY) as session:
        found, places = _logits(session, tokens)
    if recipe.basis != "model":  # what rounds the model's own weights rounds others
        recipe = replace(recipe, basis="model")
        bundle = export_hf(model, recipe=recipe, cache=cache, prefill_chunk=chunk)
        bundle.save(path)
    wanted, names = exact[places], tuple(one.name for one in bundle.program.names)
    with load(path) as program, program.session(capacity=CAPACITY) as session:
        apart = text_without_ties(model, names, way.cache, sum(CHUNKS) + STEPS_ROUNDED)
        rounded, _ = rounded_logits(model, names, way.cache, apart)
        largest = float(np.abs(rounded).max())
        return Quality(
            cosine=float(np.mean(_cosines(found, wanted))),
            agreement=float((found.argmax(1) == wanted.argmax(1)).mean()),
            rounded=_rounded_difference(session, apart, rounded) / largest,
            control=min(_controls(session, apart, rounded)) / largest,
        )


def equal_texts(name: str, recipe: str, folder: Path, count: int, length: int) -> int:
    """Return how many of `count` random texts have exactly the expected logits.

    Expected are the last token's logits, bit for bit, of the model that rounds as the
    recipe does. The texts are short, so that some have no value near a rounding tie.
    """
    model, path = build(name), folder / "model.kvc"
    cache = CacheConfig(CAPACITY)
    bundle = export_hf(model, recipe=recipe, cache=cache, prefill_chunk=max(LENGTHS))
    bundle.save(path)
    names, random = [one.name for one in bundle.program.names], np.random.default_rng(5)
    equal = 0
    with load(path) as program, program.session(capacity=CAPACITY) as session:
        for _ in range(count):
            tokens = random.integers(3, VOCAB, (1, length))
            wanted, _ = rounded_logits(model, names, "float32", tokens)
            found = prefilled(session, tokens, (length,))[0]
            equal += np.array_equal(found, wanted[-1])
    return equal


def _logits(session: Session, tokens: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Prefill tokens in chunks, decode the rest; return logits and their positions.

    Returns:
        Logits [count, vocab] after each chunk and each step, and for each of these the
            position in `tokens` of the last token that was read.
    """
    pieces, begin = prefilled(session, tokens, CHUNKS), sum(CHUNKS)
    steps = decoded(session, tokens, begin, end := tokens.shape[1])
    return np.stack([*pieces, *steps]), [*(np.cumsum(CHUNKS) - 1), *range(begin, end)]


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.einsum("ij,ij->i", a, b) / lengths


def _rounded_difference(session, tokens, wanted) -> float:
    found, places = _logits(session, tokens)
    whole = [prefilled(session, tokens, (n,))[0] - wanted[n - 1] for n in LENGTHS]
    return max(float(np.abs(d).max()) for d in [*(found - wanted[places]), *whole])


def _controls(session, tokens, wanted) -> Iterator[float]:
    """Yield, for each layer, how much a slightly wrong state changes the logits.

    One row of the layer's cache is changed by a quantization step of int8. Of a
    recurrent layer all states are changed so.
    """
    held = sum(CHUNKS)
    for layer in layers_of(session):
        if layer[0].endswith(".scale"):
            continue
        prefilled(session, tokens, (held,))
        for name in layer:
            state = session.state[name]
            if name.endswith(("keys", "values", "latents")):
                for head in state[0]:
                    _shift(head[held - 2 : held - 1])
            else:
                _shift(state[0])
        found = decoded(session, tokens, held, tokens.shape[1])
        yield float(np.abs(found - wanted[held:]).max())


def _shift(place: np.ndarray) -> None:
    """Change the numbers of a read-only array in place, by a step of int8."""
    assert place.flags.c_contiguous
    if place.dtype == np.int8:
        shifted = np.where(place < 127, place + 1, place - 1).astype(np.int8)
    else:
        step = np.abs(place.astype(np.float32)).max() / 127
        shifted = (place + step).astype(place.dtype)
    ctypes.memmove(place.ctypes.data, shifted.tobytes(), place.nbytes)


@contextmanager
def _traced_once() -> Iterator[None]:
    """Let the compiler trace each method of one model only once.

    Recipes are applied after tracing, so that all recipes share the trace.
    """
    known: dict[str, CapturedMethod] = {}

    def remembered(model: torch.nn.Module, method: Method, states=()) -> CapturedMethod:
        if method.name not in known:
            known[method.name] = capture(model, method, states)
        return known[method.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "capture", remembered)
        yield


_WORDS: Mapping[str, str] = {"conv": "convolution", "recurrent": "recurrent"}


def held(program: Program) -> Held:
    """Return the size and kinds of the states of a bundle's session."""
    symbols = {symbol.name: symbol for symbol in program.symbols}
    kinds: dict[str, None] = {}
    per_token = fixed = 0
    for state in program.states:
        kind, nbytes = state.name.rpartition(".")[2], state.type.max_nbytes(symbols)
        if state.kind is StateKind.COUNTER:
            continue
        if state.kind is StateKind.LINEAR:
            kinds["latents" if kind == "latents" else "linear"] = None
            per_token += nbytes // CAPACITY
            continue
        word = "ring" if state.kind is StateKind.RING else _WORDS[kind.split("_")[0]]
        kinds[word] = None
        fixed += nbytes
    return Held(tuple(kinds), per_token, fixed)
