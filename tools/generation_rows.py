"""Open a session of a bundle with a row for each prompt of a command."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvc.runtime import Program, Session


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
        rows: number of prompts.
        capacity: capacity that the user chose, None for the default.
        kept: of how many last calls the states must be able to drop the tokens, so that
            wrong guesses are forgotten.
        whose: the name of the bundle in messages.

    Raises:
        click.ClickException: the bundle does not take `rows` prompts at once.
    """
    from kvc.runtime import BadSetting, UnknownName

    if rows == 1:
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
        "kvc compile FOLDER --max-batch N makes one for more"
    )


def _count_rows(session: "Session") -> int:
    """Return how many prompts a session runs at once."""
    from kvc.runtime import NoPosition

    try:
        return session.position.size
    except NoPosition:
        return 1
