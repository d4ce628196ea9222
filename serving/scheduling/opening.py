"""Open the rows that a program allows: rows of one session, or sessions of one row."""

from typing import Final

from kvc.runtime import Program
from kvc.schema.errors import BadSetting, StateMismatch
from kvc.serving.scheduling.batch_rows import BatchRows
from kvc.serving.scheduling.lane_rows import LaneRows
from kvc.serving.scheduling.rows import Rows

_ROWS: Final = 16  # unless the program allows fewer
_LANES: Final = 4  # each decodes by itself


def open_rows(program: Program, size: int | None, capacity: int | None) -> Rows:
    """Return empty rows of a program.

    Args:
        program: a program with methods of the roles "prefill" and "decode".
        size: the number of rows; None for as many as the program allows, at most 16.
        capacity: how many tokens a row can hold, None for the most.

    Raises:
        UnknownName: the program cannot generate.
        BadSetting: the program's sessions have not so many rows, or tokens.
        OutOfMemory: the system provides no address space.
    """
    batch = program.symbols.get("batch")
    most = 1 if batch is None else batch.greatest
    if most > 1:
        wanted = min(most, _ROWS) if size is None else size
        session = program.session(capacity, batch=wanted)
        try:
            session.some_rows(0)
            return BatchRows(session, wanted)
        except (StateMismatch, BadSetting):
            session.close()
    return LaneRows(program, _LANES if size is None else size, capacity)
