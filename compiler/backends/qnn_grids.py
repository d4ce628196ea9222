"""Choose the grids of partitions that the backend `qnn` computes on integers.

In: partitions with ranges. Out: the payload of each. Methods that make the same values
of the same weights, as prefill and decode do, have one grid for each: samples show
every method only some of what it will be given.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kvc.compiler.emit.graph import value_numbers
from kvc.compiler.ir import Method, Node
from kvc.compiler.ir.partitions import Partition
from kvc.schema.backends import qnn_fixed
from kvc.schema.backends.grids import Grid, Stored, asymmetric
from kvc.schema.calibration import Range
from kvc.schema.errors import RangeUnbounded
from kvc.schema.ops import OPS, Aliasing

_SAME: Final = ("aten::reshape", "aten::clone")  # what they make has equal numbers
_LEAST_WIDTH: Final = qnn_fixed.LEAST * (Stored.UINT16.most - Stored.UINT16.least)
Ranges = Mapping[int, Range]


def payloads(
    partitions: Mapping[str, Sequence[Partition]],
) -> dict[str, list[bytes]]:
    """Return the payload of each partition, in order.

    Raises:
        RangeUnbounded: a value becomes infinite, or too large for the device.
    """
    numbers: dict[object, int] = {}
    keys = {
        id(one): _keys(one.graph, place, numbers)
        for some in partitions.values()
        for place, one in enumerate(some)
    }
    every = [one for some in partitions.values() for one in some]
    ranges = _joined((one.ranges, keys[id(one)]) for one in every)
    scores = _joined((one.scores, keys[id(one)]) for one in every)
    return {
        name: [_payload(one, keys[id(one)], ranges, scores) for one in some]
        for name, some in partitions.items()
    }


def _keys(graph: Method, place: int, numbers: dict[object, int]) -> dict[int, int]:
    """Return, for each value, a number that is that of all that are made like it.

    Inputs are alike where the first weight that is read is the same.

    Args:
        graph: a partition.
        place: which it is of its method; tells those without weights apart.
        numbers: what has had a number so far; added to.
    """
    keys: dict[int, int] = {}
    names = {value.id: name for value, name in graph.constants}
    read = (value.id for node in graph.nodes for value in node.inputs)
    first = next((names[value] for value in read if value in names), place)

    def number(what: object) -> int:
        return numbers.setdefault(what, len(numbers))

    for position, value in enumerate(graph.inputs):
        keys[value.id] = number(("input", first, position))
    for value, name in graph.constants:
        keys[value.id] = number(("constant", name))
    for node in graph.nodes:
        source = node.inputs[0].id if node.inputs else None
        same = node.op in _SAME or OPS[node.op].aliasing is Aliasing.VIEW
        for position, value in enumerate(node.outputs):
            if same and source in keys:
                keys[value.id] = keys[source]
                continue
            operands = tuple(keys.get(each.id) for each in node.inputs)
            made = (node.op, position, operands, _settings(node))
            keys[value.id] = number(made)
    return keys


def _settings(node: Node) -> tuple[object, ...]:
    """Return the numbers that a node computes with, each with its parameter."""
    return tuple(
        (parameter, each)
        for parameter, each in enumerate(node.arguments)
        if isinstance(each, int | float) and not isinstance(each, bool)
    )


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
    """Return the finest grid that covers a range and that the device can have.

    Raises:
        RangeUnbounded: there is none so wide.
    """
    low, high = min(found.low, 0.0), max(found.high, 0.0)
    if high - low < _LEAST_WIDTH:
        return Grid(Stored.UINT16, qnn_fixed.LEAST, round(-low / qnn_fixed.LEAST))
    grid = asymmetric(found, Stored.UINT16)
    if grid.scale > qnn_fixed.LARGEST:
        raise RangeUnbounded(low=found.low, high=found.high)
    return grid
