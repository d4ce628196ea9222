"""Random tokens, and a session that holds some of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvc.runtime import Session
from kvc.runtime.generation.encoding import find_encode
from kvc.runtime.generation.feeding import Feeder
from kvc.schema.errors import BadSetting


def random_prompts(feeder: Feeder, rows: int, count: int) -> Sequence[Sequence[int]]:
    """Return as many tokens for each row, the same in every process."""
    known = feeder.vocabulary if isinstance(feeder.vocabulary, int) else 1
    tokens: NDArray[np.int64] = np.random.default_rng(0).integers(
        0, known, (rows, count), np.int64
    )
    return tokens.tolist()  # type: ignore[no-any-return]  # numpy leaves it open


def feeder_at(session: Session, rows: int, depth: int) -> Feeder:
    """Return what feeds a session that holds `depth` random tokens in each row.

    Raises:
        BadSetting: its program has an encoder, which takes no random tokens.
        PromptTooLong: it has no room for them.
        KvcError: as `generate`.
    """
    if find_encode(session) is not None:
        expected = "one without an encoder: nothing says what to give that"
        raise BadSetting(name="bundle", expected=expected, found="one with an encoder")
    session.reset()
    feeder = Feeder(session, rows)
    if not depth:
        return feeder
    before = random_prompts(feeder, rows, depth)
    feeder.check_prompts(before)
    feeder.feed_prompts(before)
    return Feeder(session, rows)  # which counts from here
