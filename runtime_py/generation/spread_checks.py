"""Check what continues one prompt in several rows: answers, or beams.

In: a session, settings, how many answers the caller asks for. Out: the number of rows,
and warnings. `spreading.py` runs them.
"""

import warnings

from kvc.runtime.generation.session_rows import positions
from kvc.runtime.generation.settings import GenerationSettings, SettingIgnored
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import BadSetting
from kvc.schema.setting_checks import check_beams


def rows_for_beams(session: Session, answers: object, is_alone: bool) -> int:
    """Return how many beams a generation may search for by the bundle's own settings.

    Args:
        session: the session of the generation.
        answers: the number of answers that the caller asks for, None for one.
        is_alone: whether there is one prompt and no draft.
    """
    if answers is not None or not is_alone:
        return 0
    return len(positions(session) or [None])


def check_spread(
    session: Session, settings: GenerationSettings, answers: object, is_alone: bool
) -> int:
    """Return how many rows continue the prompt, as beams or answers; 1 without these.

    Args:
        session: the session of the generation.
        settings: its settings.
        answers: the number of answers that the caller asks for, None for one.
        is_alone: whether there is one prompt and no draft.

    Raises:
        BadSetting: beams or answers do not go with other arguments, or the session has
            another number of rows.
    """
    count = 1 if answers is None else check_beams("n", answers)
    name, rows = ("n", count) if answers is not None else ("num_beams", 1)
    if settings.num_beams > 1:
        if answers is not None:
            expected = "no value: a search for beams has one answer"
            raise BadSetting(name="n", expected=expected, found=answers)
        _check_beams(settings)
        name, rows = "num_beams", settings.num_beams
    if not is_alone and (rows > 1 or answers is not None):
        expected = "no value: it goes with one prompt, and without a draft"
        raise BadSetting(name=name, expected=expected, found=rows)
    held = rows if rows == 1 else len(positions(session) or [None])
    if held != rows:
        raise BadSetting(
            name=name,
            expected=f"as many as the session has rows, {held} "
            f"(session(batch={rows}) has {rows})",
            found=rows,
        )
    return rows


def warn_if_equal(
    settings: GenerationSettings, answers: int | None, stacklevel: int = 1
) -> None:
    """Warn if several answers to one prompt will be the same.

    Args:
        settings: the settings of the generation.
        answers: the number of answers that the caller asks for, None for one.
        stacklevel: the stack level of the warning, 1 for the caller of this function.

    Warns:
        SettingIgnored: the likeliest token is always taken.
    """
    if answers is None or answers == 1 or settings.temperature:
        return
    message = (
        f"n={answers}: all answers will be equal, as the likeliest token is always "
        "taken; give a temperature above 0"
    )
    warnings.warn(message, SettingIgnored, stacklevel=stacklevel + 1)


def _check_beams(settings: GenerationSettings) -> None:
    """Check that the settings go with a search for beams.

    Raises:
        BadSetting: they do not.
    """
    wrong = {
        "temperature": ("0: beams are not sampled", settings.temperature),
        "stop_strings": ("none: num_beams is above 1", settings.stop_strings),
    }
    if settings.constraint is not None:
        form = "none: beams have no form, and num_beams is above 1"
        wrong[settings.constraint.kind] = form, settings.constraint.content[:80]
    for name, (expected, found) in wrong.items():
        if found:
            raise BadSetting(name=name, expected=expected, found=found)
