"""Things by name, each made when it is first asked for."""

from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class MadeOnce(dict[str, Made], Generic[Made]):
    """A dict that makes the value of a missing key and keeps it."""

    def __init__(self, make: Callable[[str], Made]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Made:
        self[name] = self._make(name)
        return self[name]
