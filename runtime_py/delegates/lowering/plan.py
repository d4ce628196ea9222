"""The inputs and outputs of the calls of a lowered partition.

There is a `Plan` for each set of sizes. Values are given by their ids in the graph of
the partition.
"""

from kvc.runtime.delegates.host_checks import Writes
from kvc.runtime.delegates.host_runs import Handed
from kvc.runtime.delegates.lowering.function import Function
from kvc.schema.frozen import frozen


@frozen
class Feed:
    """An input or a state of the function.

    Attributes:
        name: the function's name of the input or state.
        value: id of the value that the input or state gets.
    """

    name: str
    value: int


@frozen
class Take:
    """An output of the function.

    Attributes:
        name: the function's name of the output.
        output: index of the result among the graph's outputs.
    """

    name: str
    output: int


@frozen
class Changed:
    """A state that a call changes.

    Attributes:
        name: the function's name of the state.
        output: index of the state's new content among the graph's outputs.
        cache: id of the value that is the state's old content.
        writes: where the call writes new rows; None if any slot can change.
    """

    name: str
    output: int
    cache: int
    writes: Writes | None


@frozen
class Looked:
    """A cache access whose positions the host checks.

    Attributes:
        instruction: index of the instruction that reads or writes the cache.
        writes: where the instruction writes; None for a read.
        total: for a read, the id of the value with the number of positions; None for a
            write.
        lengths: id of the value with the number of real queries; None if all are real.
        queries: the number of queries.
        slots: the number of slots of the cache; None for a write and for a ring.
    """

    instruction: int
    writes: Writes | None
    total: int | None = None
    lengths: int | None = None
    queries: int = 0
    slots: int | None = None


@frozen
class Indexed:
    """The valid range of an index that the function checks.

    Attributes:
        instruction: index of the instruction that uses the index.
        least: the minimum.
        most: the exclusive maximum.
    """

    instruction: int
    least: int
    most: int


@frozen
class Plan:
    """The calls of a partition at a set of sizes.

    Attributes:
        function: the function to run.
        feeds: the values for the function's inputs and states.
        takes: the outputs of the partition that are outputs of the function.
        changed: the function's states, which a call changes.
        handed: outputs of the partition that the host has without running the function.
        looked: cache accesses that the host checks.
        indexed: indices that have to be in range. The function's output `OUTSIDE` has,
            for each index, the least and the greatest out-of-range element, or 0. For
            a device with the trait `DeviceTraits.readable`, the host instead reads the
            outputs with the names that `index_name` returns.
        begins: for each instruction, the number of operations before those of the
            instruction.
    """

    function: Function
    feeds: tuple[Feed, ...]
    takes: tuple[Take, ...]
    changed: tuple[Changed, ...]
    handed: tuple[Handed, ...]
    looked: tuple[Looked, ...]
    indexed: tuple[Indexed, ...]
    begins: tuple[int, ...] = ()


# The output that has the out-of-range elements of indices, int32 [2 * indices].
OUTSIDE = "index_outside"


def value_name(value: int) -> str:
    """Return the name of the output that has a value that the host checks.

    `value` is the value's id.
    """
    return f"value_{value}"


def index_name(number: int) -> str:
    """Return the name of the output that has an index that the host checks.

    `number` is the index's place in `Plan.indexed`.
    """
    return f"index_{number}"
