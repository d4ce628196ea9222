"""Compute only those positions of an axis that a method selects later.

Only the last token of a prompt leads to logits, so the last layer's queries, products
and norms are needed for that token alone. In a classifier, the last layer is needed for
the first token alone. Keys and values of the other tokens are still needed for the
cache. In: a program. Out: the same program, in which a node that works on each position
separately computes only the positions that are selected from its result. So the
selection precedes the node. This is done only if all readers of the node's result
select the same positions.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from kvc.compiler.ir import (
    Argument,
    Method,
    Node,
    Program,
    Value,
    map_argument,
    values_in,
)
from kvc.compiler.ir.rewrite import (
    NodeList,
    each_method,
    rename_node,
    rename_results,
)
from kvc.compiler.passes.same_index import counted_from_front
from kvc.schema.ops import OPS, Aliasing
from kvc.schema.types import Affine, Dim, TensorType, add_dims


@dataclass(frozen=True, slots=True)
class SelectEarly:
    """Move selections of positions up to the node that computes them."""

    name: ClassVar[str] = "select-early"

    def run(self, program: Program) -> Program:
        """Return the program without computations of positions that are never read."""
        return each_method(program, _select_early)


@dataclass(frozen=True, slots=True)
class _Places:
    """Consecutive positions of an axis: `count` of them, from `start`."""

    axis: int
    start: Dim
    count: Dim

    def of(self, kind: TensorType) -> TensorType:
        """Return the type of the part of a tensor at these positions."""
        return replace(
            kind,
            dims=(*kind.dims[: self.axis], self.count, *kind.dims[self.axis + 1 :]),
        )

    def on(self, axis: int) -> "_Places":
        """Return the same positions of another axis."""
        return replace(self, axis=axis)


@dataclass(frozen=True, slots=True)
class _Way:
    """How a node computes only some positions of its result.

    Attributes:
        operands: index of an argument -> the positions of the argument that are read.
            Arguments without an entry are read whole.
        changed: index of an argument -> the argument that replaces it.
    """

    operands: Mapping[int, _Places]
    changed: Mapping[int, Argument] = field(default_factory=dict)


def _select_early(method: Method) -> Method:
    plan = _plan(method)
    if not plan:
        return method
    selecting = _Selecting(method)
    for at, node in enumerate(method.nodes):
        places, way = plan.get(at, (None, None))
        if places is None or way is None:
            selecting.keep(node)
        else:
            selecting.make(node, places, way)
    nodes = tuple(selecting.made.nodes)
    return rename_results(replace(method, nodes=nodes), selecting.names)


class _Selecting:
    """Rebuilds a method with nodes that compute only selected positions."""

    def __init__(self, method: Method) -> None:
        self.made = NodeList(method)
        self.names: dict[int, Value] = {}
        self._selected: dict[tuple[int, _Places], Value] = {}

    def keep(self, node: Node) -> None:
        """Add a node unchanged, unless it selects positions that are computed alone.

        A slice of such positions is dropped; a select of such a position reads it.
        """
        chosen = _selection(node)
        known = None
        if chosen is not None:
            known = self._selected.get((node.inputs[0].id, chosen))
        if known is None:
            self.made.keep(rename_node(node, self.names))
        elif node.op == "aten::select.int":
            self.made.keep(replace(node, arguments=(known, node.arguments[1], 0)))
        else:
            self.names[node.outputs[0].id] = known

    def make(self, node: Node, places: _Places, way: _Way) -> None:
        """Add a node that computes only the positions `places` of its result."""
        arguments = list(node.arguments)
        for k, needed in way.operands.items():
            take = partial(self._take, needed, node.source)
            arguments[k] = map_argument(arguments[k], take)
        for k, argument in way.changed.items():
            arguments[k] = argument
        parts = tuple(self.made.value(places.of(v.type)) for v in node.outputs)
        changed = replace(node, arguments=tuple(arguments), outputs=parts)
        self.made.keep(rename_node(changed, self.names))
        for whole, part in zip(node.outputs, parts, strict=True):
            self._selected[whole.id, places] = part

    def _take(self, places: _Places, source: str, value: Value) -> Value:
        """Return `places` of a value; add a slice if no node computes them alone."""
        found = self._selected.get((value.id, places))
        if found is None:
            whole = self.names.get(value.id, value)
            end = add_dims(places.start, places.count)
            arguments = (whole, places.axis, places.start, end, 1)
            kind = places.of(value.type)
            found = self.made.add("aten::slice.Tensor", arguments, kind, source)
            self._selected[value.id, places] = found
        return found


def _plan(method: Method) -> dict[int, tuple[_Places, _Way]]:
    """Find the nodes whose results are read at the same positions by all readers.

    Returns:
        Index of a node -> the positions read, and how the node computes them.
    """
    makers = method.makers()
    found: dict[int, tuple[_Places, _Way]] = {}
    read: dict[int, set[_Places | None]] = defaultdict(set)  # None means all positions
    kept = (method.state_out, method.input_out)
    for value in (*method.outputs, *(v for pairs in kept for v, _ in pairs)):
        read[value.id].add(None)
    for at in reversed(range(len(method.nodes))):
        node = method.nodes[at]
        wanted = set[_Places | None]().union(*(read[v.id] for v in node.outputs))
        places = next(iter(wanted)) if len(wanted) == 1 else None
        way = None if places is None else _way(node, places)
        if places is not None and way is not None and _is_computed(node, makers):
            found[at] = places, way
            for k, argument in enumerate(node.arguments):
                for value in values_in((argument,)):
                    read[value.id].add(way.operands.get(k))
            continue
        chosen = _selection(node)
        for k, value in enumerate(node.inputs):
            read[value.id].add(chosen if k == 0 else None)
    return found


def _is_computed(node: Node, makers: Mapping[int, Node]) -> bool:
    """Tell whether a node's result is neither persistent memory nor a view of it.

    Persistent memory is that of states, inputs and constants. Views of it stay as they
    are, since other passes recognize caches by them.
    """
    maker: Node | None = node
    while maker is not None and OPS[maker.op].aliasing is Aliasing.VIEW:
        maker = makers.get(maker.inputs[0].id)
    return maker is not None and OPS[maker.op].aliasing is Aliasing.FRESH


def _selection(node: Node) -> _Places | None:
    """Return the positions of its first operand that a node selects.

    Return None if the node is no selection, or selects all positions.
    """
    match node.op, node.arguments:
        case "aten::select.int", (Value() as whole, int(dim), place):
            count: Dim = 1
        case "aten::slice.Tensor", (Value() as whole, int(dim), place, _, 1):
            place = 0 if place is None else place
            count = node.outputs[0].type.dims[dim]
        case _:
            return None
    axis = dim % len(whole.type.dims)
    size = whole.type.dims[axis]
    start = counted_from_front(place, size)
    if start is None or count in (size, 0) or not _is_place(place):
        return None
    return _Places(axis, start, count)


def _is_place(start: Argument) -> bool:
    """Tell whether the start of a selection is a constant, or a constant plus sizes.

    A start that is negative for some sizes would count from the end for these sizes.
    """
    if not isinstance(start, Affine):
        return True
    return start.constant >= 0 and all(factor > 0 for _, factor in start.parts)


def _way(node: Node, places: _Places) -> _Way | None:
    """Return how a node computes only `places` of its result, None if it cannot."""
    if OPS[node.op].pointwise or node.op == "kvc::glu":
        return _way_of_aligned(node, places)
    find = _WAYS.get(node.op)
    return None if find is None else find(node, places)


def _way_of_aligned(node: Node, places: _Places) -> _Way:
    """Select the same positions of all operands, which are broadcast to the result."""
    rank = len(node.outputs[0].type.dims)
    operands = {}
    for k, argument in enumerate(node.arguments):
        if isinstance(argument, Value):
            aligned = _aligned(argument, rank, places)
            operands.update({} if aligned is None else {k: aligned})
    return _Way(operands)


def _aligned(value: Value, rank: int, places: _Places) -> _Places | None:
    """Return the positions of a broadcast operand for `places` of the result.

    Return None if the operand has no such axis, or has size 1 along it. `rank` is the
    rank of the result.
    """
    axis = places.axis - rank + len(value.type.dims)
    return None if axis < 0 or value.type.dims[axis] == 1 else places.on(axis)


def _way_of_rows(node: Node, places: _Places, width: int = 1) -> _Way | None:
    """Select rows of the first operand; result row i depends on operand row i alone.

    A row has `width` axes, the last ones. Return None if `places` are within rows.
    """
    return (
        _Way({0: places})
        if places.axis < len(node.outputs[0].type.dims) - width
        else None
    )


def _way_of_norm(node: Node, places: _Places) -> _Way | None:
    shape = node.arguments[1]
    assert isinstance(shape, tuple)
    return _way_of_rows(node, places, len(shape))


def _way_of_softmax(node: Node, places: _Places) -> _Way | None:
    axis = _axis(node.arguments[1], node.inputs[0])
    return _Way({0: places}) if axis != places.axis else None


def _way_of_product(node: Node, places: _Places) -> _Way | None:
    """Select rows of the first operand of a matrix product."""
    rank = len(node.outputs[0].type.dims)
    ranks = [len(value.type.dims) for value in node.inputs[:2]]
    if places.axis != rank - 2 or min(ranks) < 2:
        return None
    return _Way({0: places.on(ranks[0] - 2)})


def _way_of_attention_product(node: Node, places: _Places) -> _Way | None:
    """Select queries of a product attention, if it is not causal.

    Causal attention derives the position of each query from the number of queries.
    """
    rank = len(node.outputs[0].type.dims)
    _, _, _, mask, causal, *_ = node.arguments
    if places.axis != rank - 2 or causal:
        return None
    aligned = _aligned(mask, rank, places) if isinstance(mask, Value) else None
    return _Way({0: places} | ({} if aligned is None else {3: aligned}))


def _way_of_attention(node: Node, places: _Places) -> _Way | None:
    """Select the last queries of an attention, None for any other selection.

    The operator takes its queries to be at the last positions.
    """
    q, *_, row_lengths, _ = node.arguments
    size = node.outputs[0].type.dims[2]
    last = add_dims(places.start, places.count) == size
    if places.axis != 2 or not last or row_lengths is not None or q is None:
        return None
    mask = node.arguments[9]
    aligned = _aligned(mask, 4, places) if isinstance(mask, Value) else None
    return _Way({0: places} | ({} if aligned is None else {9: aligned}))


def _way_of_rotary(node: Node, places: _Places) -> _Way | None:
    rank = len(node.outputs[0].type.dims)
    return _way_of_aligned(node, places) if places.axis < rank - 1 else None


def _way_of_cat(node: Node, places: _Places) -> _Way | None:
    axis = _axis(node.arguments[1], node.outputs[0])
    return _Way({0: places}) if axis != places.axis else None


def _way_of_transpose(node: Node, places: _Places) -> _Way:
    a, b = (_axis(dim, node.outputs[0]) for dim in node.arguments[1:])
    return _Way({0: places.on({a: b, b: a}.get(places.axis, places.axis))})


def _way_of_permute(node: Node, places: _Places) -> _Way:
    (dims,) = node.arguments[1:]
    assert isinstance(dims, tuple)
    return _Way({0: places.on(_axis(dims[places.axis], node.outputs[0]))})


def _way_of_unsqueeze(node: Node, places: _Places) -> _Way | None:
    axis = _axis(node.arguments[1], node.outputs[0])
    return _Way({0: places.on(places.axis - (places.axis > axis))})


def _way_of_part(node: Node, places: _Places) -> _Way | None:
    """Select along any axis except the axis that a slice cuts or a select removes."""
    axis = _axis(node.arguments[1], node.inputs[0])
    gone = node.op == "aten::select.int" and places.axis >= axis
    own = places.on(places.axis + gone)
    return _Way({0: own}) if own.axis != axis else None


def _way_of_split(node: Node, places: _Places) -> _Way | None:
    axis = _axis(node.arguments[2], node.inputs[0])
    return _Way({0: places}) if axis != places.axis else None


def _way_of_view(node: Node, places: _Places) -> _Way | None:
    """Select positions of a view's operand, along the axis that becomes the same axis.

    Return None unless the sizes up to that axis are the same before and after the view,
    apart from sizes 1.
    """
    before, after = node.inputs[0].type.dims, node.outputs[0].type.dims
    front = [d for d in after[: places.axis] if d != 1]
    for axis, size in enumerate(before):
        same = [d for d in before[:axis] if d != 1] == front
        if same and size == after[places.axis]:
            shape = places.of(node.outputs[0].type).dims
            return _Way({0: places.on(axis)}, {1: shape})
    return None


def _way_of_expand(node: Node, places: _Places) -> _Way:
    """Select positions of an expanded tensor, unless the axis is a repeated one."""
    (result,) = node.outputs
    aligned = _aligned(node.inputs[0], len(result.type.dims), places)
    operands = {} if aligned is None else {0: aligned}
    return _Way(operands, {1: places.of(result.type).dims})


def _axis(dim: Argument, value: Value) -> int:
    assert isinstance(dim, int)
    return dim % len(value.type.dims)


_WAYS: dict[str, Callable[[Node, _Places], _Way | None]] = {
    "aten::linear": _way_of_rows,
    "aten::rms_norm": _way_of_norm,
    "aten::layer_norm": _way_of_norm,
    "aten::softmax.int": _way_of_softmax,
    "aten::log_softmax.int": _way_of_softmax,
    "aten::matmul": _way_of_product,
    "aten::mm": _way_of_product,
    "aten::bmm": _way_of_product,
    "aten::scaled_dot_product_attention": _way_of_attention_product,
    "kvc::attention": _way_of_attention,
    "kvc::rotary_embedding": _way_of_rotary,
    "aten::cat": _way_of_cat,
    "aten::transpose.int": _way_of_transpose,
    "aten::permute": _way_of_permute,
    "aten::unsqueeze": _way_of_unsqueeze,
    "aten::slice.Tensor": _way_of_part,
    "aten::select.int": _way_of_part,
    "aten::split_with_sizes": _way_of_split,
    "aten::expand": _way_of_expand,
    "aten::view": _way_of_view,
    "aten::reshape": _way_of_view,
}
