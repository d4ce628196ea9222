"""`embed`: turn texts or pictures into vectors, similar for similar content.

In: a program, texts or pictures. Out: for each text or picture a vector, float32.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvc.runtime.embedding.pictures import run_pictures
from kvc.runtime.embedding.rows import Floats, run_texts
from kvc.runtime.embedding.settings import text_settings
from kvc.runtime.sessions.program import Program

if TYPE_CHECKING:
    from kvc.runtime.embedding.pictures import Picture


def embed(program: Program, texts: Sequence[str], prompt: str | None = None) -> Floats:
    """Return the embeddings of texts, float32 [texts, n].

    Texts of similar length run together, so any number may be given.

    Args:
        program: a program of a model for the task "embed".
        texts: one or more texts.
        prompt: the name of a prefix in the bundle, which is put before each text. None
            stands for the bundle's default prefix, or for no prefix if the bundle has
            no default; "" stands for no prefix.

    Raises:
        BadSetting: there are no texts, a text has no tokens, there is no prefix of that
            name, or the model has a different task.
        TextTooLong: a text has more tokens than the model takes; nothing has run.
        MissingPackage, BadTokenizer: as `tokenizer_of`.
        ExecutionError: as `Program.call`.
    """
    return run_texts(program, text_settings(program, "embed"), texts, prompt)


def embed_images(program: Program, pictures: "Sequence[Picture]") -> Floats:
    """Return the embeddings of pictures, float32 [pictures, n].

    Args:
        program: a program of a model for the task "embed" that takes pictures.
        pictures: paths of files, or Pillow images; one or more.

    Raises:
        BadSetting: there are no pictures, or the model has a different task.
        BadPicture, FileProblem: a file is not a picture, or is too large.
        MissingPackage: Pillow is not installed.
        ExecutionError: as `Program.call`.
    """
    return run_pictures(program, "embed", pictures)


def similarity(one: Floats, other: Floats) -> Floats:
    """Return the cosine of the angle between each vector of `one` and each of `other`.

    Args:
        one: float32 [ones, n].
        other: float32 [others, n].

    Returns:
        float32 [ones, others].
    """
    first, second = (_of_length_one(vectors) for vectors in (one, other))
    cosines: Floats = first @ second.T
    return cosines


def _of_length_one(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    divided: Floats = vectors / np.maximum(lengths, 1e-12)
    return divided
