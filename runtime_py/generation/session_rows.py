"""Check that a session can generate, with a row for each prompt.

In: a session, a number of prompts. Out: the methods that take as many rows, and how
many tokens each row holds.
"""

from collections.abc import Sequence

from kvc.runtime.sessions.methods import find_roles
from kvc.runtime.sessions.session import Session
from kvc.schema.errors import BadSetting, NoPosition
from kvc.schema.model import Method


def check_session(session: object) -> None:
    """Check that an object is a session of a program that can generate.

    Raises:
        BadSetting: the object is not a session.
        UnknownName: no method has the role `prefill`, or none the role `decode`.
    """
    if not isinstance(session, Session):
        expected, found = "a Session, as program.session() opens it", repr(session)
        raise BadSetting(name="session", expected=expected, found=found)
    for role in ("prefill", "decode"):
        find_roles(session, role)


def of_rows(
    methods: Sequence[Method], rows: int, name: str = "session"
) -> Sequence[Method]:
    """Return those of the methods that take several rows of different lengths.

    Args:
        methods: methods of one role.
        rows: the number of rows; all methods are returned for one row.
        name: the name of the session in messages.

    Raises:
        BadSetting: no method takes several rows of different lengths.
    """
    if rows == 1:
        return methods
    found = [method for method in methods if method.row_lengths is not None]
    if not found:
        whose = "" if name == "session" else f" of the {name}"
        raise BadSetting(
            name="prompt",
            expected=f"one, since no method of the role {methods[0].role}{whose} takes "
            "row lengths (lengths, active)",
            found=f"{rows}",
        )
    return found


def check_rows(name: str, prompts: int, rows: int) -> None:
    """Check that a session has exactly one row for each prompt.

    Args:
        name: the name of the session in messages.
        prompts: the number of prompts.
        rows: the number of the session's rows.

    Raises:
        BadSetting: the numbers of rows and prompts differ.
    """
    if rows == prompts:
        return
    if prompts > 1 and name == "session":
        raise BadSetting(
            name="prompt",
            expected=f"as many as the session has rows, {rows} "
            f"(session(batch={prompts}) has {prompts})",
            found=f"{prompts}",
        )
    more = ", or a list with a prompt for each" if name == "session" else ""
    wanted = "one row" if prompts == 1 else f"{prompts} rows, one for each prompt"
    raise BadSetting(
        name=name,
        expected=f"a session of {wanted}{more}",
        found=f"{rows} row{'s' * (rows > 1)}",
    )


def positions(session: Session) -> list[int] | None:
    """Return how many tokens each row of a session holds; None if it does not count."""
    try:
        return list(map(int, session.position))
    except NoPosition:
        return None


def positions_as_text(positions: Sequence[int]) -> str:
    """Return rows' positions as text; the position alone if there is one row."""
    return f"{positions[0] if len(positions) == 1 else positions}"
