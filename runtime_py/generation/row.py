"""`Row`: the token count of one row of a session in a generation."""

from dataclasses import dataclass


@dataclass(slots=True)
class Row:
    """The number of tokens that one row of a session has run in a generation.

    Attributes:
        start: the row's position before the first token, None if unknown.
        capacity: the row's greatest position, None for no limit.
        fed: how many tokens the row has run.
    """

    start: int | None
    capacity: int | None
    fed: int = 0

    @property
    def room(self) -> int | None:
        """Return how many more tokens fit into the row, None for no limit."""
        return (
            None
            if self.start is None or self.capacity is None
            else self.capacity - self.start - self.fed
        )
