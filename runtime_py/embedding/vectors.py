"""`embed`: vectors of texts and pictures, which are near where these are alike."""

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

    Texts of about one length are run together, so any number may be given.

    Args:
        program: of a model for the task "embed".
        texts: one or more.
        prompt: the name of a text of the bundle that is put before each text; None:
            the usual one, if there is one; "": none.

    Raises:
        BadSetting: there are no texts, the tokenizer makes nothing of one, there is no
            such prompt, or the bundle is of no such model.
        TextTooLong: a text has more tokens than the model takes; nothing has run.
        MissingPackage, BadTokenizer: as `tokenizer_of`.
        ExecutionError: as `Program.call`.
    """
    return run_texts(program, text_settings(program, "embed"), texts, prompt)


def embed_images(program: Program, pictures: "Sequence[Picture]") -> Floats:
    """Return the embeddings of pictures, float32 [pictures, n].

    Args:
        program: of a model for the task "embed" that takes pictures.
        pictures: paths of files, or pictures of Pillow; one or more.

    Raises:
        BadSetting: there are none, or the bundle is of no such model.
        BadPicture, FileProblem: a file is no picture, or too large a one.
        MissingPackage: Pillow is not installed.
        ExecutionError: as `Program.call`.
    """
    return run_pictures(program, "embed", pictures)


def similarity(one: Floats, other: Floats) -> Floats:
    """Return the cosine of each pair of vectors, float32 [ones, others].

    Args:
        one: [ones, n].
        other: [others, n].
    """
    first, second = (_of_length_one(vectors) for vectors in (one, other))
    cosines: Floats = first @ second.T
    return cosines


def _of_length_one(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    divided: Floats = vectors / np.maximum(lengths, 1e-12)
    return divided
