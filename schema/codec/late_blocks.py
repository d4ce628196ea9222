"""`LateBlocks`: blocks of methods that are decoded when something first needs them.

A program with bound lists runs without its graphs, and to decode and check them takes
most of the time that opening a bundle takes. In: functions that decode blocks, and a
check of the whole program. Out: sequences of blocks. The first access to any of them
decodes all, then runs the check: no block that was not checked is seen outside of it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from kvc.schema.model import Block


class LateBlocks:
    """The blocks of one program, read together.

    Attributes:
        check: checks the program; set before the first access. It may access blocks.
    """

    def __init__(self) -> None:
        self.check: Callable[[], None] = _no_check
        self._lock = threading.RLock()
        self._given: list[StoredBlocks] = []
        self._checked = self._reading = False

    @property
    def used(self) -> bool:
        """Tell whether there are any blocks to be read."""
        return bool(self._given)

    def blocks(
        self, count: int, read: Callable[[], tuple[Block, ...]]
    ) -> Sequence[Block]:
        """Return `count` blocks that `read` will decode."""
        made = StoredBlocks(self, count, read)
        self._given.append(made)
        return made

    def settle(self) -> None:
        """Decode all blocks and check the program, once.

        Raises:
            FormatError: the program is wrong; again at each later access.
        """
        with self._lock:
            if self._checked or self._reading:
                return
            self._reading = True
            try:
                for one in self._given:
                    one.read()
                self.check()
                self._checked = True
            finally:
                self._reading = False


class StoredBlocks(Sequence[Block]):
    """The blocks of one method; equal to the tuple of them."""

    def __init__(
        self, late: LateBlocks, count: int, read: Callable[[], tuple[Block, ...]]
    ) -> None:
        self._late, self._count, self._read = late, count, read
        self._blocks: tuple[Block, ...] | None = None

    def read(self) -> None:
        """Decode the blocks."""
        if self._blocks is None:
            self._blocks = self._read()

    def _all(self) -> tuple[Block, ...]:
        self._late.settle()
        assert self._blocks is not None, "settling reads all blocks"
        return self._blocks

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Block: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Block]: ...

    def __getitem__(self, index: int | slice) -> Block | Sequence[Block]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Block]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == (
            other._all() if isinstance(other, StoredBlocks) else other
        )

    def __hash__(self) -> int:
        return hash(self._all())


def _no_check() -> None:
    raise AssertionError("the check is set before blocks are read")
