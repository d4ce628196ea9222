"""The tiny decoder compiled by any recipe, and calls to compare recipes by."""

from pathlib import Path

import numpy as np
import tiny_decoder

from kvc.compiler import compile_program
from kvc.recipes import Recipe
from kvc.runtime import Session

TOKENS = np.arange(3, 27)[None]


def compiled(path: Path, recipe: Recipe | str, **options: object) -> Path:
    spec = tiny_decoder.factory()
    facts = {"metadata": spec.metadata, **options}
    compile_program(spec.model, spec.methods, recipe, **facts).save(path)
    return path


def answers(session: Session) -> list[np.ndarray]:
    """Return the logits of fixed calls: prefill, decode, rewind, and again."""
    found = [session.prefill(TOKENS[:, :9]), session.decode(TOKENS[:, 9:10])]
    session.rewind(3)
    found += [session.prefill(TOKENS[:, 7:12]), session.decode(TOKENS[:, 12:13])]
    return found


def contents(session: Session) -> list[np.ndarray]:
    """Return copies of all states, in the order of their names."""
    return [np.array(session.state[name]) for name in sorted(session.state)]


def distance(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Return the largest difference of answers, each over its largest wanted number."""
    pairs = zip(found, wanted, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def near(found: np.ndarray, wanted: np.ndarray, far: float) -> bool:
    return bool(np.abs(found - wanted).max() <= far * np.abs(wanted).max())
