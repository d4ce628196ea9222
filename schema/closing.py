"""`Closing`: base class of objects with `close`, usable in a `with` statement."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Base class of objects that hold a resource until they are closed."""

    @abstractmethod
    def close(self) -> None:
        """Release the resource; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
