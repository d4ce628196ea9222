"""`classify`: the score of each label of a model for texts and pictures.

In: a program, texts or pictures. Out: labels, the likeliest first.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvc.runtime.embedding.pictures import run_pictures
from kvc.runtime.embedding.rows import Floats, run_texts
from kvc.runtime.embedding.settings import labels_of, scores_of, text_settings
from kvc.runtime.sessions.program import Program
from kvc.schema.errors import BadSetting
from kvc.schema.frozen import frozen

if TYPE_CHECKING:
    from kvc.runtime.embedding.pictures import Picture


@frozen
class Label:
    """A label of a text or a picture, with its score.

    Attributes:
        name: the label's name in the model's configuration.
        score: a number from 0 to 1. If each text or picture has exactly one right
            label, the scores of all labels add up to 1. For a regression model, the
            score can be any number.
    """

    name: str
    score: float


def classify(program: Program, texts: Sequence[str]) -> list[tuple[Label, ...]]:
    """Return all labels of each text, the likeliest first.

    Args:
        program: a program of a model for the task "classify".
        texts: one or more texts.

    Raises:
        BadSetting, TextTooLong, MissingPackage, ExecutionError: as `embed`.
    """
    logits = run_texts(program, text_settings(program, "classify"), texts, None)
    return list(_labelled(program, logits))


def classify_images(
    program: Program, pictures: "Sequence[Picture]"
) -> list[tuple[Label, ...]]:
    """Return all labels of each picture, the likeliest first.

    Args:
        program: a program of a model for the task "classify" that takes pictures.
        pictures: paths of files, or Pillow images; one or more.

    Raises:
        BadSetting, BadPicture, FileProblem, MissingPackage, ExecutionError: as
            `embed_images`.
    """
    return list(_labelled(program, run_pictures(program, "classify", pictures)))


def _labelled(program: Program, logits: Floats) -> Iterator[tuple[Label, ...]]:
    names = labels_of(program)
    if logits.shape[1] != len(names):
        expected, found = f"a name for each of {logits.shape[1]}", f"{len(names)} names"
        raise BadSetting(name="the bundle's labels", expected=expected, found=found)
    scored = scores_of(program)
    for row in logits.astype(np.float64):
        scores = scored(row)
        order = np.argsort(-scores, kind="stable")
        yield tuple(Label(names[i], float(scores[i])) for i in order)
