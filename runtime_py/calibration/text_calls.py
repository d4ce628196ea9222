"""Run a model without a cache, as one that embeds, on pieces of a text.

In: a text. Out: calls with one piece each, so that no row has padding.
"""

from typing import Final

import numpy as np

from kvc.runtime.embedding.rows import run_texts
from kvc.runtime.embedding.settings import TEXTS, task_of, text_settings
from kvc.runtime.sessions.program import Program
from kvc.runtime.tokenizers import tokenizer_of
from kvc.schema.container import Progress
from kvc.schema.errors import BadSamples, KvcError

_MOST: Final = 128  # pieces
_LETTERS: Final = 400  # of a piece, some 100 tokens


def takes_texts(program: Program) -> bool:
    """Tell whether a program says of itself that it takes whole texts."""
    return TEXTS in program.metadata


def run_pieces(
    source: str, text: str, program: Program, progress: Progress
) -> tuple[int, int]:
    """Run pieces from all over a text; return how many, and their tokens.

    Raises:
        BadSamples: the model does not take one.
        KvcError: as `Program.call`.
    """
    pieces = _pieces(text)
    try:
        settings = text_settings(program, task_of(program))
        tokenizer = tokenizer_of(program)
        count = 0
        for number, piece in enumerate(pieces):
            item = f"text {number + 1} of {len(pieces)}"
            progress("calibrate", number, len(pieces), item)
            count += len(tokenizer.encode(settings.prepared(piece, None)))
            run_texts(program, settings, [piece], None)
    except BadSamples:
        raise
    except KvcError as error:
        raise BadSamples(source=source, reason=str(error)) from error
    return len(pieces), count


def _pieces(text: str) -> list[str]:
    """Return lines of a text, short ones together and long ones cut."""
    pieces, begun = list[str](), ""
    for line in text.splitlines():
        for begin in range(0, len(line), _LETTERS):
            part = line[begin : begin + _LETTERS]
            if len(begun) + len(part) > _LETTERS:
                pieces.append(begun)
                begun = ""
            begun = f"{begun}\n{part}" if begun else part
    pieces.append(begun)
    whole = [piece for piece in pieces if piece.strip()]
    places = np.linspace(0, len(whole) - 1, min(_MOST, len(whole))).astype(int)
    return [whole[place] for place in places]
