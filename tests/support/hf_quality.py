"""What each recipe costs a tiny model of transformers, and whether it is done right.

A bundle of a recipe is compared twice: with the model in float32, which says how good
the recipe is, and with the model that rounds as the recipe does (`hf_rounded`), which
says whether the bundle computes what the recipe says. Under int8 a cache that is a
little wrong hides in the first comparison. It shows in the second, and the control is
just that: a row of one layer's cache that is a step off.
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
    """What a session holds of a text, in float32."""

    kinds: tuple[str, ...]  # of states, in words
    per_token: int  # bytes for each token
    fixed: int  # bytes however long the text is, rings included


def qualities(
    name: str, folder: Path, ways: Sequence[Way] = WAYS, shallow: bool = False
) -> tuple[Held, dict[Way, Quality | None]]:
    """Return what a session holds, and recipes; None: it cannot have such caches."""
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
    """Return how many texts have the logits, bit for bit, of a model that rounds.

    Texts are short and chosen by chance, so that not all of them have ties. The model
    has two layers.
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
    """Return logits [count, vocab] of a prefill in chunks and all steps, and where."""
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
    """Yield the difference that a row of each layer makes that is a step off.

    Of a layer that is recurrent, it is all of its states.
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
    """Change numbers by a step of int8, where a session only lets one look."""
    assert place.flags.c_contiguous
    if place.dtype == np.int8:
        shifted = np.where(place < 127, place + 1, place - 1).astype(np.int8)
    else:
        step = np.abs(place.astype(np.float32)).max() / 127
        shifted = (place + step).astype(place.dtype)
    ctypes.memmove(place.ctypes.data, shifted.tobytes(), place.nbytes)


@contextmanager
def _traced_once() -> Iterator[None]:
    """Let the compiler remember the traces of one model; recipes come after them."""
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
    """Return what a session of a bundle of a model of `hf_models` holds."""
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
