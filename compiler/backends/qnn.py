"""The backend `qnn`, ahead of time: chooses what becomes float16, or integers.

Integers are for the option `activations = "uint16"`; samples give their grids.

Products and what follows from them are taken. What no product feeds is left to others:
positions, angles and tables that numbers of tokens are made of need more than float16
has. So is a cache that others than attention read, since the device never has its new
content in one piece; and what reads, where the host has to, what the device has made:
a cache, a place in it, a mask.
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
from kvc.schema.backends.operands import WhyNot
from kvc.schema.calibration import Range
from kvc.schema.errors import BadOption, RangeUnbounded
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Symbol

# Choose the grids of partitions that the backend `qnn` computes on integers.


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


# The backend `qnn`, ahead of time: chooses what becomes float16, or integers.


_ACTIVATIONS: Final = "activations"

_KEYS, _VALUES = 1, 2  # arguments of `kvc::attention`
# Arguments that the host reads before the device runs: a cache, where it is written and
# how far; the valid length, mask, slopes and row lengths of attention.
_OF_THE_HOST = {qnn.CACHE_UPDATE: (0, 2, 5), qnn.ATTENTION: (3, 9, 10, 15)}


class Qnn(BlockBackend):
    """Takes products, attention and what is computed with their results."""

    name: ClassVar[str] = "qnn"
    fixed_shapes = True

    def __init__(self, options: Mapping[str, Option]) -> None:
        """Take how activations are stored, "float16" or "uint16".

        Raises:
            BadOption: they cannot be, or there is another option.
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
        """Return the list of what it supports."""
        return qnn_fixed.why_not if self.calibrated else qnn.why_not

    def lower(
        self,
        partitions: Mapping[str, Sequence[Partition]],
        constants: Mapping[str, Constant],
        symbols: tuple[Symbol, ...],
    ) -> Mapping[str, Sequence[Lowered]]:
        """Return the grids of each partition, if it computes on any.

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
        """Return the nodes to take."""
        able = able_nodes(method, self.supported)
        while True:
            taken = _fed(method, able)
            wrong = _unfit(method, taken)
            if not wrong:
                return frozenset(taken)
            able = {i: node for i, node in able.items() if i not in wrong}


def _fed(method: Method, able: dict[int, Node]) -> dict[int, Node]:
    """Return what products feed, and these themselves."""
    fed: set[int] = set()
    taken: dict[int, Node] = {}
    for index, node in sorted(able.items()):
        if node.op in qnn.ANCHORS or any(value.id in fed for value in node.inputs):
            taken[index] = node
            fed |= {value.id for value in node.outputs}
    return taken


def _unfit(method: Method, taken: dict[int, Node]) -> frozenset[int]:
    """Return cache writes whose results others read, and attention that is not alike.

    And what is a view of a cache, or of what is no float; and what has the host read
    what the device has yet to make.
    """
    made_there = {value.id for node in taken.values() for value in node.outputs}
    writers = {n.outputs[0].id: i for i, n in taken.items() if n.op == qnn.CACHE_UPDATE}
    wrong: set[int] = set()
    for index, node in enumerate(method.nodes):
        inside = index in taken
        for number, argument in enumerate(node.arguments):
            for value in _values(argument):
                if value.id not in writers:
                    continue
                role = number in (_KEYS, _VALUES) and node.op == qnn.ATTENTION
                if not (inside and role):
                    wrong.add(writers[value.id])
        if inside and node.op == qnn.ATTENTION and not _alike(node, taken, writers):
            keys, values = node.arguments[_KEYS], node.arguments[_VALUES]
            made = [writers.get(v.id) for v in (*_values(keys), *_values(values))]
            wrong |= {each for each in made if each is not None}
        if inside and (not _is_float(node) or made_there & _read_by_host(node)):
            wrong.add(index)
    return frozenset(wrong)


def _read_by_host(node: Node) -> frozenset[int]:
    """Return the values that the host reads before the device runs."""
    if OPS[node.op].aliasing is Aliasing.CHECK:
        return frozenset(value.id for value in node.inputs)
    numbers = _OF_THE_HOST.get(node.op, ())
    return frozenset(v.id for n in numbers for v in _values(node.arguments[n]))


def _values(argument: object) -> tuple[Value, ...]:
    items = argument if isinstance(argument, tuple) else (argument,)
    return tuple(item for item in items if isinstance(item, Value))


def _alike(node: Node, taken: dict[int, Node], writers: dict[int, int]) -> bool:
    """Tell whether keys and values are written at one place, as they are read."""
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
    """Tell whether a view is of what the device computes with."""
    if OPS[node.op].aliasing is not Aliasing.VIEW:
        return True
    return not qnn.why_not_float32([value.type for value in node.inputs])
