"""The backend `qnn`, ahead of time: computes in float16, or on integers.

The option `activations = "uint16"` selects integers, whose grids (quantization scales
and zero points) are computed from samples. Matrix products and nodes that depend on
them are taken. Nodes that depend on no product are left to other backends: positions,
angles and tables computed from token counts need more than float16. Two more kinds of
nodes are left. One is the writes of a cache that operators other than attention read,
since the device never has the cache's new content in one piece. The other is nodes with
an argument that the host reads but the device computes: a cache, a position in the
cache, a mask.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from kvc.compiler.backends.base import BlockBackend, able_nodes
from kvc.compiler.emit.graph import value_numbers
from kvc.compiler.ir import Constant, Method, Node, Value
from kvc.compiler.ir.partitions import Lowered, Partition
from kvc.recipes import Option
from kvc.schema.backends import qnn, qnn_fixed
from kvc.schema.backends.grids import Grid, Stored, asymmetric
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
)
from kvc.schema.backends.operands import WhyNot
from kvc.schema.calibration import Range
from kvc.schema.errors import BadOption, RangeUnbounded
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing
from kvc.schema.types import Symbol

# Select the grids of partitions that are computed on integers.


# Their results have the same numbers as their inputs.
_SAME: Final = ("aten::reshape", "aten::clone")
_LEAST_WIDTH: Final = qnn_fixed.LEAST * (Stored.UINT16.most - Stored.UINT16.least)
Ranges = Mapping[int, Range]


def payloads(
    partitions: Mapping[str, Sequence[Partition]],
) -> dict[str, list[bytes]]:
    """Return name of a caller -> the payload of each of its partitions, in order.

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
    ranges = _merged_ranges((one.ranges, keys[id(one)]) for one in every)
    scores = _merged_ranges((one.scores, keys[id(one)]) for one in every)
    return {
        name: [_payload(one, keys[id(one)], ranges, scores) for one in some]
        for name, some in partitions.items()
    }


def _keys(graph: Method, place: int, numbers: dict[object, int]) -> dict[int, int]:
    """Return a key for each value, equal for values that are computed in the same way.

    Inputs of two partitions get equal keys if both partitions read the same weight
    first.

    Args:
        graph: a partition.
        place: the partition's index in its method, which distinguishes partitions
            without weights.
        numbers: the keys so far, by description; new keys are added.
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
    """Return the numbers among a node's arguments, each with its argument index."""
    return tuple(
        (parameter, each)
        for parameter, each in enumerate(node.arguments)
        if isinstance(each, int | float) and not isinstance(each, bool)
    )


def _merged_ranges(
    some: Iterable[tuple[Ranges, Mapping[int, int]]],
) -> dict[int, Range]:
    """Return key -> the range that covers the ranges of all values with that key.

    Each item of `some` is the ranges of a partition's values, and the keys of the
    values.
    """
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
    """Return the payload of a partition: the grids of its values and of its scores.

    `scores` are the ranges of attention scores, by key, like `ranges`.
    """
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
    """Return the finest grid that covers a range and that the device supports.

    Raises:
        RangeUnbounded: no grid is wide enough.
    """
    low, high = min(found.low, 0.0), max(found.high, 0.0)
    if high - low < _LEAST_WIDTH:
        return Grid(Stored.UINT16, qnn_fixed.LEAST, round(-low / qnn_fixed.LEAST))
    grid = asymmetric(found, Stored.UINT16)
    if grid.scale > qnn_fixed.LARGEST:
        raise RangeUnbounded(low=found.low, high=found.high)
    return grid


# The QNN backend.


_ACTIVATIONS: Final = "activations"

_KEYS, _VALUES = 1, 2  # arguments of `kvc::attention`
# Arguments that the host reads before the device runs: a cache, where it is written and
# how far; the valid length, mask, slopes and row lengths of attention.
_OF_THE_HOST = {CACHE_UPDATE: (0, 2, 5), ATTENTION: (3, 9, 10, 15)}


class Qnn(BlockBackend):
    """Takes products, attention and nodes that depend on their results."""

    name: ClassVar[str] = "qnn"
    fixed_shapes = True

    def __init__(self, options: Mapping[str, Option]) -> None:
        """Take the option `activations`: "float16" or "uint16".

        Raises:
            BadOption: another value, or another option.
        """
        rest = dict(options)
        found = rest.pop(_ACTIVATIONS, "float16")
        super().__init__(rest)
        if found not in ("float16", "uint16"):
            raise BadOption(
                backend=self.name,
                option=_ACTIVATIONS,
                expected="'float16' or 'uint16'",
                found=repr(found),
            )
        self.calibrated = found == "uint16"

    @property
    def supported(self) -> WhyNot:
        """Return the function that says why QNN does not support a node."""
        return qnn_fixed.why_not if self.calibrated else qnn.why_not

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return the grids of each partition, if the backend computes on integers.

        Raises:
            RangeUnbounded: a value becomes infinite, or too large for the device.
        """
        if not self.calibrated:
            return super().lower(partitions, constants, symbols)
        return {
            name: [Lowered(payload=payload) for payload in some]
            for name, some in payloads(partitions).items()
        }

    def supports(self, method: Method) -> frozenset[int]:
        """Return the indices of the nodes to take into partitions."""
        able = able_nodes(method, self.supported)
        while True:
            taken = _fed(method, able)
            wrong = _unfit(method, taken)
            if not wrong:
                return frozenset(taken)
            able = {i: node for i, node in able.items() if i not in wrong}


def _fed(method: Method, able: dict[int, Node]) -> dict[int, Node]:
    """Return, by index, the products and the nodes that depend on products."""
    fed: set[int] = set()
    taken: dict[int, Node] = {}
    for index, node in sorted(able.items()):
        if node.op in qnn.ANCHORS or any(value.id in fed for value in node.inputs):
            taken[index] = node
            fed |= {value.id for value in node.outputs}
    return taken


def _unfit(method: Method, taken: dict[int, Node]) -> frozenset[int]:
    """Return the indices of the nodes to leave out of partitions.

    These are cache writes whose results are read by nodes other than attention;
    attention whose keys and values are written at different positions; views of a
    cache, or of tensors that are not floats; and nodes with arguments that the host
    reads but the device computes.
    """
    made_there = {value.id for node in taken.values() for value in node.outputs}
    writers = {n.outputs[0].id: i for i, n in taken.items() if n.op == CACHE_UPDATE}
    wrong: set[int] = set()
    for index, node in enumerate(method.nodes):
        inside = index in taken
        for number, argument in enumerate(node.arguments):
            for value in _values(argument):
                if value.id not in writers:
                    continue
                role = number in (_KEYS, _VALUES) and node.op == ATTENTION
                if not (inside and role):
                    wrong.add(writers[value.id])
        if inside and node.op == ATTENTION and not _alike(node, taken, writers):
            keys, values = node.arguments[_KEYS], node.arguments[_VALUES]
            made = [writers.get(v.id) for v in (*_values(keys), *_values(values))]
            wrong |= {each for each in made if each is not None}
        if inside and (not _is_float(node) or made_there & _read_by_host(node)):
            wrong.add(index)
    return frozenset(wrong)


def _read_by_host(node: Node) -> frozenset[int]:
    """Return the ids of a node's arguments that the host reads before the node runs."""
    if OPS[node.op].aliasing is Aliasing.CHECK:
        return frozenset(value.id for value in node.inputs)
    numbers = _OF_THE_HOST.get(node.op, ())
    return frozenset(v.id for n in numbers for v in _values(node.arguments[n]))


def _values(argument: object) -> tuple[Value, ...]:
    items = argument if isinstance(argument, tuple) else (argument,)
    return tuple(item for item in items if isinstance(item, Value))


def _alike(node: Node, taken: dict[int, Node], writers: dict[int, int]) -> bool:
    """Tell whether an attention's keys and values are written alike.

    They are if the same slots of both caches are written, in the layout that the
    attention reads, or if the partition writes neither cache.
    """
    pair = [
        writers.get(v.id) for n in (_KEYS, _VALUES) for v in _values(node.arguments[n])
    ]
    if pair == [None, None]:
        return True
    if None in pair:
        return False
    places = []
    for index in pair:
        assert index is not None
        _, _, start, _, mode, lengths, keep = taken[index].arguments
        places.append((start, mode, lengths, keep))
    layout, keep = node.arguments[12], node.arguments[16]
    return places[0] == places[1] and (places[0][1], places[0][3]) == (layout, keep)


def _is_float(node: Node) -> bool:
    """Tell whether a node is not a view, or is a view of a tensor of floats."""
    if OPS[node.op].aliasing is not Aliasing.VIEW:
        return True
    return not qnn.why_not_float32([value.type for value in node.inputs])
