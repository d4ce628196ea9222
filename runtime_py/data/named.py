"""`Named`: base class of mappings from the names in a program to its things."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from kvc.schema.errors import UnknownName

Thing = TypeVar("Thing")


class Named(Mapping[str, Thing]):
    """Things of a program by name; a name that it does not have is an `UnknownName`."""

    def __init__(self, kind: str, names: Iterable[tuple[str, int]]) -> None:
        """Take the id of each name; `kind` is for messages."""
        self._kind, self._ids = kind, dict(names)

    @abstractmethod
    def _of(self, number: int) -> Thing:
        """Return a thing by its id."""

    def __getitem__(self, name: str) -> Thing:
        if name not in self._ids:
            raise UnknownName(kind=self._kind, name=name, known=tuple(self._ids))
        return self._of(self._ids[name])

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)
