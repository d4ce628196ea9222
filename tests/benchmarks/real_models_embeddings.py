"""What recipes lose on a trained model of embeddings, MiniLM: cosines.

In: a folder of sentence-transformers, texts. Out: how near the embedding of each of
their first paragraphs is to that by `cpu_fp32`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from real_models_compile import MakeSamples, compiled

from kvc.runtime import embed, load

PARAGRAPHS = 16  # of each text
LEAST = 40  # characters of a paragraph


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a recipe: cosines with the embeddings by float32."""

    name: str
    nbytes: int
    least: float
    mean: float


def paragraphs(texts: Mapping[str, str]) -> list[str]:
    """Return the first paragraphs of some length of each text, of 400 characters."""
    found = []
    for text in texts.values():
        long = (part.strip() for part in text.split("\n\n") if len(part) > LEAST)
        found += [part[:400] for part, _ in zip(long, range(PARAGRAPHS), strict=False)]
    return found


def measure(
    source: Path,
    recipes: Sequence[str],
    given: Sequence[str],
    samples: MakeSamples,
    folder: Path,
) -> Iterator[Row]:
    """Yield a row for cpu_fp32 and for each recipe."""
    exact = None
    for recipe in ("cpu_fp32", *recipes):
        path = compiled(source, recipe, folder, samples, all_logits=False)
        with load(path) as program:
            found = np.asarray(embed(program, list(given)), np.float64)
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        exact = found if exact is None else exact
        cosines = (found * exact).sum(1)
        nbytes = path.stat().st_size
        yield Row(recipe, nbytes, float(cosines.min()), float(cosines.mean()))
