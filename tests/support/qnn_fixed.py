"""Models for the recipe `qnn_a16w8`: compiled with samples, called the same way."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import tiny_decoder

from kvc.compiler import compile_program
from kvc.recipes import Recipe, load_recipe
from kvc.runtime import Session
from kvc.runtime.calibration import Samples

TOKENS = np.arange(3, 27)[None]


def recipe(**buckets: tuple[int, ...]) -> Recipe:
    return replace(load_recipe("qnn_a16w8"), buckets=buckets)


def samples(folder: Path) -> Samples:
    """Return two sequences of tokens."""
    random = np.random.default_rng(0)
    tokens = np.stack([TOKENS[0], random.integers(0, 32, 24)])
    np.savez(folder / "samples.npz", tokens=tokens)
    return Samples(folder / "samples.npz")


def compiled(path: Path, recipe: Recipe | str) -> Path:
    """Compile the tiny decoder, with samples if the recipe needs any."""
    spec, given = tiny_decoder.factory(), None
    loaded = load_recipe(recipe) if isinstance(recipe, str) else recipe
    if loaded.backend_options:
        given = samples(path.parent)
    made = compile_program(
        spec.model, spec.methods, loaded, metadata=spec.metadata, calibrate=given
    )
    made.save(path)
    return path


def answers(session: Session) -> list[np.ndarray]:
    """A prompt in pieces, tokens, and what was said again after going back."""
    found = [session.prefill(TOKENS[:, :9]), session.decode(TOKENS[:, 9:10])]
    session.rewind(3)
    found += [session.prefill(TOKENS[:, 7:12]), session.decode(TOKENS[:, 12:13])]
    return found


def distance(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Return the largest difference, over the largest number of each answer."""
    pairs = zip(found, wanted, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
