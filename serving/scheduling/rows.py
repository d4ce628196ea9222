"""`Rows`: the states of all rows of a scheduler, whatever the program allows.

In: tokens for single rows. Out: the logits after them; rows that are emptied, copied,
cut to their first tokens, moved out. `batch_rows.py` and `lane_rows.py` implement it.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kvc.runtime import Session
from kvc.runtime.generation.logits import Logits
from kvc.schema.closing import Closing
from kvc.schema.errors import CannotRewind, NoPosition, NotRewindable
from kvc.schema.model import Method

Chosen = tuple[str | None, float]  # the name of an adapter, and its scale
PLAIN: Final[Chosen] = (None, 1.0)
NOT_BACK: Final = (NotRewindable, CannotRewind, NoPosition)


class Rows(Closing):
    """The states of all rows.

    Attributes:
        size: the number of rows.
        capacity: how many tokens a row can hold, None for no limit.
        longest: how many tokens one call can add, None for no limit.
        vocabulary: how many logits a token has.
        together: whether all rows decode in one call.
    """

    size: int
    capacity: int | None
    longest: int | None
    vocabulary: int
    together: bool

    @abstractmethod
    def read(self, row: int, tokens: Sequence[int]) -> Logits:
        """Run tokens of one row; return the logits after the last, float32 [vocab].

        Raises:
            ExecutionError: as `Session.call`.
        """

    @abstractmethod
    def step(self, tokens: Mapping[int, int]) -> Mapping[int, Logits]:
        """Run one token of each of some rows; return the logits of each of them.

        Raises:
            ExecutionError: as `Session.call`.
        """

    @abstractmethod
    def clear(self, row: int, adapter: Chosen) -> None:
        """Empty a row, and give it an adapter.

        Raises:
            UnknownName: the adapter has been freed.
            KvcError: as `Session.reset_row`.
        """

    @abstractmethod
    def cut(self, row: int, tokens: int) -> bool:
        """Drop all but a row's first tokens; tell whether that was possible.

        Raises:
            KvcError: as `Session.admit`, except that the row cannot go back.
        """

    @abstractmethod
    def copy(self, source: int, target: int, tokens: int) -> bool:
        """Copy a row's first tokens to another row; tell whether that was possible.

        Raises:
            KvcError: as `cut`.
        """

    @abstractmethod
    def take(self, row: int, session: Session, adapter: Chosen, tokens: int) -> bool:
        """Copy first tokens of a session of one row; tell whether that was possible.

        `adapter` is that of the session.

        Raises:
            KvcError: as `cut`.
        """

    @abstractmethod
    def give(self, row: int) -> Session:
        """Return a session of one row with the content of a row, which is then lost.

        Raises:
            OutOfMemory: the system provides no address space.
            KvcError: as `Session.admit`.
        """

    @abstractmethod
    def twin(self, row: int) -> Session:
        """Return a session of one row with the content of a row; raises as `give`."""

    @abstractmethod
    def prepare(self) -> Iterator[None]:
        """Bind one size of call at each step, for calls to come.

        Raises:
            KvcError: as `Session.prepare`.
        """

    @property
    @abstractmethod
    def is_usable(self) -> bool:
        """Tell whether all rows have the states that calls have left.

        Raises:
            Closed: the program has been closed.
        """

    @abstractmethod
    def mend(self) -> None:
        """Empty all rows after a call that has left states partly written.

        Raises:
            Closed: the program has been closed.
        """


def vocabulary_of(method: Method) -> int:
    """Return how many logits a method returns for a token."""
    dim = method.graph.values[method.graph.outputs[0]].type.dims[-1]
    assert isinstance(dim, int), "a model has a fixed number of logits"
    return dim
