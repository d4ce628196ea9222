"""Choose the grids of partitions that the backend `qnn` computes on integers.

In: partitions with ranges. Out: the payload of each. Methods that make the same values
of the same weights, as prefill and decode do, have one grid for each: samples show
every method only some of what it will be given.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kvc.compiler.backends.base import Partition
from kvc.compiler.emit.graph import value_numbers
from kvc.compiler.ir import Method
from kvc.schema.backends import qnn_fixed
from kvc.schema.backends.grids import Grid, Stored, asymmetric
from kvc.schema.calibration import Range
from kvc.schema.ops import OPS, Aliasing

_SAME: Final = ("aten::reshape", "aten::clone")  # what they make has equal numbers
Ranges = Mapping[int, Range]


def payloads(
    partitions: Mapping[str, Sequence[Partition]],
) -> dict[str, list[bytes]]:
    """Return the payload of each partition, in order.

    Raises:
        RangeUnbounded: a value becomes infinite.
    """
    numbers: dict[object, int] = {}
    keys = {
        id(one): _keys(one.graph, numbers)
        for some in partitions.values()
        for one in some
    }
    every = [one for some in partitions.values() for one in some]
    ranges = _joined((one.ranges, keys[id(one)]) for one in every)
    scores = _joined((one.scores, keys[id(one)]) for one in every)
    return {
        name: [_payload(one, keys[id(one)], ranges, scores) for one in some]
        for name, some in partitions.items()
    }


def _keys(graph: Method, numbers: dict[object, int]) -> dict[int, int]:
    """Return, for each value, a number that is that of all that are made like it.

    Args:
        graph: a partition.
        numbers: what has had a number so far; added to.
    """
    keys: dict[int, int] = {}

    def number(what: object) -> int:
        return numbers.setdefault(what, len(numbers))

    for place, value in enumerate(graph.inputs):
        keys[value.id] = number(("input", place))
    for value, name in graph.constants:
        keys[value.id] = number(("constant", name))
    for node in graph.nodes:
        first = node.inputs[0].id if node.inputs else None
        same = node.op in _SAME or OPS[node.op].aliasing is Aliasing.VIEW
        for place, value in enumerate(node.outputs):
            if same and first in keys:
                keys[value.id] = keys[first]
                continue
            read = tuple(keys.get(each.id) for each in node.inputs)
            keys[value.id] = number((node.op, place, read))
    return keys


def _joined(some: Iterable[tuple[Ranges, Mapping[int, int]]]) -> dict[int, Range]:
    """Return the ranges of all values of a key."""
    found: dict[int, Range] = {}
    for ranges, keys in some:
        for value, seen in ranges.items():
            if value in keys:
                key = keys[value]
                found[key] = found.get(key, seen).joined(seen)
    return found


def _payload(
    partition: Partition,
    keys: Mapping[int, int],
    ranges: Mapping[int, Range],
    scores: Mapping[int, Range],
) -> bytes:
    """Return the grids of a partition."""
    numbers = value_numbers(partition.graph)
    values = {
        numbers[value]: _grid(found)
        for value, own in partition.ranges.items()
        for found in [ranges[keys[value]] if value in keys else own]
    }
    products = {
        numbers[value]: _grid(scores[keys[value]]) for value in partition.scores
    }
    return qnn_fixed.write_payload(qnn_fixed.Grids(values, products))


def _grid(found: Range) -> Grid:
    """Return a grid; of zeros alone, one that reaches no further than it has to."""
    if found.low == found.high == 0:
        return Grid(Stored.UINT16, qnn_fixed.LEAST)
    return asymmetric(found, Stored.UINT16)
