"""What a saved session is: its program, and its position."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvc.runtime.sessions.snapshot_files import SnapshotFile
from kvc.schema.text import columns, escape, plural, size


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A saved session.

    Attributes:
        path, nbytes: of the file.
        program: identity of the bundle's program; in older files its digest.
        position: of each row, None where nothing counts tokens.
        pending: tokens of each row that were generated but not run yet.
        capacity: the greatest position, None where nothing limits it.
        sizes: that the session chose.
        states: how many.
    """

    path: str
    nbytes: int
    program: str
    position: Sequence[int] | None
    pending: Sequence[Sequence[int]]
    capacity: int | None
    sizes: Mapping[str, int]
    states: int


def describe_session(path: str) -> SessionReport:
    """Read a saved session.

    Raises:
        FileProblem: the system cannot read it.
        BadSnapshot: it is damaged.
    """
    with SnapshotFile(path) as file:
        header = file.header
        return SessionReport(
            path=file.path,
            nbytes=file.nbytes,
            program=header.program,
            position=header.position,
            pending=header.pending,
            capacity=header.capacity,
            sizes=header.sizes,
            states=len(header.states),
        )


def session_lines(report: SessionReport) -> list[str]:
    """Lay a report out."""
    position = "none; nothing in the program counts tokens"
    if report.position is not None:
        position = ", ".join(map(str, report.position))
    pending = ""
    if any(report.pending):
        tokens = plural(sum(map(len, report.pending)), "token")
        pending = f"{tokens} generated but not run yet"
    rows = [
        ("program", f"identity {escape(report.program[:16])}, as kvc dump BUNDLE says"),
        ("position", position),
        ("capacity", "no limit" if report.capacity is None else str(report.capacity)),
        ("pending", pending),
        (
            "sizes",
            ", ".join(f"{escape(k)} {escape(str(v))}" for k, v in report.sizes.items()),
        ),
        ("states", str(report.states)),
    ]
    title = f"{escape(report.path)}: a saved session, {size(report.nbytes)}"
    return [title, *columns(row for row in rows if row[1])]
