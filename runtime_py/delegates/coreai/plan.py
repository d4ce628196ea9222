"""What a call of a partition gives Core AI, and takes from it.

A `Plan` is made for each set of sizes. Values are those of the partition's graph.
"""

from kvc.runtime.delegates.coreai.function import Function
from kvc.runtime.delegates.host_checks import Writes
from kvc.runtime.delegates.host_runs import Handed
from kvc.schema.frozen import frozen


@frozen
class Feed:
    """An input or a state, by the name that the function has for it."""

    name: str
    value: int


@frozen
class Take:
    """A result, by the name of the function's output."""

    name: str
    output: int


@frozen
class Changed:
    """A state that is changed.

    Attributes:
        name: of the function's state.
        output: index among the graph's outputs, of the new content.
        cache: value of the old content.
        writes: where its new rows are, if it is changed nowhere else.
    """

    name: str
    output: int
    cache: int
    writes: Writes | None


@frozen
class Looked:
    """A place in a cache that the host checks.

    Attributes:
        instruction: index of what reads or writes the cache.
        writes: where it writes; None where it reads.
        total: value of how many positions there are, where it reads; None otherwise.
        lengths: value of how many queries count, or None.
        queries: how many there are.
        slots: of the cache, None of a ring.
    """

    instruction: int
    writes: Writes | None
    total: int | None = None
    lengths: int | None = None
    queries: int = 0
    slots: int | None = None


@frozen
class Indexed:
    """An index that the function has looked at: from a number on, below another."""

    instruction: int
    least: int
    most: int


@frozen
class Plan:
    """The calls of a partition at one set of sizes.

    Attributes:
        function: what runs.
        feeds: its inputs and states.
        takes: its outputs.
        changed: its states.
        handed: results that need no function.
        looked: places in caches.
        indexed: indices; the function's output `OUTSIDE` has the least and the greatest
            of each that is outside, or 0.
    """

    function: Function
    feeds: tuple[Feed, ...]
    takes: tuple[Take, ...]
    changed: tuple[Changed, ...]
    handed: tuple[Handed, ...]
    looked: tuple[Looked, ...]
    indexed: tuple[Indexed, ...]


OUTSIDE = "index_outside"
