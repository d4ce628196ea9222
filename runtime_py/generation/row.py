"""`Row`: how far one row of a session is in a generation."""

from dataclasses import dataclass


@dataclass(slots=True)
class Row:
    """How many tokens one row of a session has taken.

    Attributes:
        start: its position before the first token, None where nothing counts.
        capacity: its greatest position, None for no limit.
        fed: how many tokens it has taken.
    """

    start: int | None
    capacity: int | None
    fed: int = 0

    @property
    def room(self) -> int | None:
        """Return how many more tokens it takes, None for no limit."""
        return (
            None
            if self.start is None or self.capacity is None
            else self.capacity - self.start - self.fed
        )
