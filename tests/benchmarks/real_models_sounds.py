"""What recipes lose on a trained model of speech, Whisper tiny.en: words.

In: a folder of transformers. Out: how many words of ten sentences, each spoken by
several voices of espeak-ng, are others than those by `cpu_fp32`, and than those that
were said.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from real_models_compile import compiled
from spoken_sentences import OTHERS, SENTENCES, spoken, words, write_sound, wrong_words

from kvc.runtime import load
from kvc.runtime.speech import transcribe

VOICES = ("en", "en-us", "en+f3")


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a recipe.

    Attributes:
        changed, wrong: words that are not those by float32, and not those that were
            said.
        total: words by float32.
    """

    name: str
    nbytes: int
    changed: int
    wrong: int
    total: int


def measure(source: Path, recipes: Sequence[str], folder: Path) -> Iterator[Row]:
    """Yield a row for cpu_fp32 and for each recipe."""
    if shutil.which("espeak-ng") is None:
        sys.exit("there is no voice: `apt install espeak-ng`")
    said = [words(sentence) for sentence in SENTENCES for _ in VOICES]
    sounds = [spoken(sentence, voice) for sentence in SENTENCES for voice in VOICES]
    exact: list[list[str]] = []
    for recipe in ("cpu_fp32", *recipes):
        path = compiled(source, recipe, folder, _samples, all_logits=False)
        found = list(_heard(path, sounds))
        exact = exact or found
        yield Row(
            name=recipe,
            nbytes=path.stat().st_size,
            changed=sum(map(wrong_words, found, exact)),
            wrong=sum(map(wrong_words, found, said)),
            total=sum(map(len, exact)),
        )


def _samples(folder: Path) -> Path:
    """Return a sound of other sentences, by the first voice."""
    path, rest = folder / "samples.wav", np.zeros(8000, np.float32)
    said = [np.concatenate([spoken(one, VOICES[0]), rest]) for one in OTHERS]
    write_sound(path, np.concatenate(said))
    return path


def _heard(path: Path, sounds: Sequence[np.ndarray]) -> Iterator[list[str]]:
    """Yield the words of each sound."""
    with load(path) as program, program.session() as session:
        for sound in sounds:
            yield words(transcribe(session, sound).text)
