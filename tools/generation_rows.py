"""The rows of `kvc generate`: one for each prompt, answer or beam.

In: what the user asks for. Out: whether these options go together; a session with as
many rows; which pictures belong to which prompt.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from kvc.tools.generation_options import form_option

if TYPE_CHECKING:
    from kvc.runtime import Program, Session
    from kvc.runtime.generation import Arguments

BEAM_TOKENS: Final = 256  # without a limit; a search to the end of a cache takes hours


def check_drafts(
    draft: str | None, draft_tokens: int | None, prompt_lookup: bool
) -> None:
    """Check that the options of drafts fit each other.

    Raises:
        click.UsageError: they do not.
    """
    if draft is not None and prompt_lookup:
        raise click.UsageError("--prompt-lookup takes the place of --draft")
    if draft is None and not prompt_lookup and draft_tokens is not None:
        raise click.UsageError("--draft-tokens needs --draft or --prompt-lookup")


def check_rows(
    answers: int | None,
    beams: int | None,
    prompts: int,
    checked: bool,
    settings: "Arguments",
) -> None:
    """Check that the options of several rows fit the others.

    Raises:
        click.UsageError: they do not.
    """
    if answers is not None and beams is not None:
        raise click.UsageError("--beams finds one answer, so not with --answers")
    name = "--answers" if answers is not None else "--beams"
    if (answers or beams) and prompts > 1:
        raise click.UsageError(f"{name} takes one PROMPT")
    if (answers or beams) and checked:
        raise click.UsageError(f"{name} goes without a draft and --prompt-lookup")
    form = form_option(settings)
    if beams is not None and beams > 1 and form:
        raise click.UsageError(f"--beams does not go together with {form}")


def open_rows(
    program: "Program",
    rows: int,
    capacity: int | None,
    kept: int,
    whose: str = "this bundle",
) -> "Session":
    """Open a session with a row for each prompt.

    Args:
        program: the bundle's program.
        rows: number of prompts; 0 for pictures alone.
        capacity: capacity that the user chose, None for the default.
        kept: of how many last calls the states must be able to drop the tokens, so that
            wrong guesses are forgotten.
        whose: the name of the bundle in messages.

    Raises:
        click.ClickException: the bundle does not take `rows` prompts at once.
    """
    from kvc.runtime import BadSetting, UnknownName

    if rows <= 1:
        return program.session(capacity, snapshots=kept)
    try:
        return program.session(capacity, snapshots=kept, batch=rows)
    except BadSetting as error:
        if error.name != "batch":
            raise
        most: object = error.expected
    except UnknownName:  # a program whose rows are not chosen has a fixed number
        session = program.session(capacity, snapshots=kept)
        most = _count_rows(session)
        if most == rows:
            return session
        session.close()
    raise click.ClickException(
        f"{rows} rows are asked for, one for each prompt, answer or beam, and "
        f"{whose} takes {most} at a time; "
        "kvc compile MODEL --max-batch N makes one for more"
    )


def limit_beams(session: "Session", settings: "Arguments") -> str:
    """Limit the length of a search for beams that has no limit; return a note of it.

    The result is "" if nothing was changed.
    """
    from kvc.runtime.generation import settings_of

    if (settings.get("num_beams") or 1) == 1 or settings.get("max_tokens") is not None:
        return ""
    with warnings.catch_warnings(action="ignore"):
        said = settings_of(session.metadata, settings, rows=settings["num_beams"])
    least = BEAM_TOKENS if session.capacity is None else session.capacity
    limited = said.max_tokens is not None or said.max_length is not None
    if limited or least < BEAM_TOKENS:
        return ""
    settings["max_tokens"] = BEAM_TOKENS
    return (
        f"note: --beams searches for at most {BEAM_TOKENS} tokens; "
        "--max-tokens N sets another limit"
    )


def _count_rows(session: "Session") -> int:
    """Return how many prompts a session runs at once."""
    from kvc.runtime import NoPosition

    try:
        return session.position.size
    except NoPosition:
        return 1


def images_of_prompts(
    session: "Session",
    texts: "Sequence[str | Sequence[int]]",
    images: Sequence[str],
) -> Sequence[Sequence[str]]:
    """Return the pictures that belong to each text, in order.

    A text with markers of pictures gets as many as it has markers. The last text gets
    all that remain.

    Raises:
        KvcError: the bundle's description of pictures is invalid.
    """
    from kvc.runtime.generation.picture_places import places_of

    places = places_of(session) if images else None
    given, left = list[Sequence[str]](), list(images)
    for text in texts:
        count = 0
        if places is not None and isinstance(text, str):
            count = places.count_in(text)
        given.append(left[:count])
        left = left[count:]
    return [*given[:-1], [*given[-1], *left]]
