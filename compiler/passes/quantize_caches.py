"""Caches as int8: rows are quantized as they are written, and read as they are.

A float state that `kvc::cache_update` writes and `kvc::attention` reads becomes two:
int8 rows under its own name, and a float32 scale for each row under `NAME.scale`, with
the same axis of slots. Each write becomes `kvc::quantize_cache` and two updates at the
same slots; attention takes the scales. Between a state and attention axes may be
swapped, but those of a row. Whatever else reads or writes a cache is an error, since
what it sees would be another model's numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.ir import Argument, Method, Node, Program, State, Value, bound_to
from kvc.compiler.passes.caches import CACHE_UPDATE, SWAPS, find_caches, swapped_axes
from kvc.compiler.passes.rewrite import NodeList
from kvc.schema.dtypes import DType
from kvc.schema.types import TensorType

_Pair = tuple[Value, Value]  # int8 rows and their scales


@dataclass(frozen=True, slots=True)
class QuantizeCaches:
    """Store the caches of a program as int8."""

    name: ClassVar[str] = "quantize-caches"

    def run(self, program: Program) -> Program:
        """Return the program over int8 caches.

        Raises:
            CacheNotInt8: a cache is read or written in another way, or there is none.
        """
        caches = find_caches(program)
        scales = _names_of_scales(program, caches)
        methods = tuple(_Rewriter(m, scales).method() for m in program.methods)
        states = [part for s in program.states for part in _parts(s, scales)]
        return replace(program, methods=methods, states=tuple(states))


def _names_of_scales(program: Program, caches: Sequence[str]) -> dict[str, str]:
    """Return state -> name of the state of its scales, which nothing else has."""
    taken = {state.name for state in program.states}
    names = {}
    for state in caches:
        name = f"{state}.scale"
        while name in taken:
            name += "_"
        taken.add(name)
        names[state] = name
    return names


def _parts(state: State, scales: Mapping[str, str]) -> Iterator[State]:
    if state.name not in scales:
        yield state
        return
    rows, scale = _types(state.type)
    yield replace(state, type=rows)
    yield State(scales[state.name], scale, None)


def _types(cache: TensorType) -> tuple[TensorType, TensorType]:
    """Return the types of the rows and of the scales of what has a float type."""
    scale = TensorType(DType.FLOAT32, cache.dims[:-1])
    return TensorType(DType.INT8, cache.dims), scale


class _Rewriter:
    """One method while its caches become int8; `_pairs` are their values, by old id."""

    def __init__(self, method: Method, scales: Mapping[str, str]) -> None:
        self._method, self._scales = method, scales
        self._nodes = NodeList(method)
        self._pairs: dict[int, _Pair] = {}

    def method(self) -> Method:
        """Return the method over int8 caches."""
        states = bound_to(self._method.state_in)
        if not any(name in self._scales for name in states.values()):
            return self._method
        state_in = tuple(self._bound(self._method.state_in, begins=True))
        for node in self._method.nodes:
            self._rewrite(node)
        state_out = tuple(self._bound(self._method.state_out, begins=False))
        nodes = tuple(self._nodes.nodes)
        return replace(
            self._method, state_in=state_in, state_out=state_out, nodes=nodes
        )

    def _bound(
        self, bindings: tuple[tuple[Value, str], ...], begins: bool
    ) -> Iterator[tuple[Value, str]]:
        for value, name in bindings:
            if name not in self._scales:
                yield value, name
                continue
            if begins:
                self._pairs[value.id] = self._pair(value)
            rows, scale = self._pairs[value.id]
            yield rows, name
            yield scale, self._scales[name]

    def _pair(self, value: Value) -> _Pair:
        """Return new values for the rows and the scales of a value."""
        rows, scale = _types(value.type)
        return self._nodes.value(rows), self._nodes.value(scale)

    def _rewrite(self, node: Node) -> None:
        first = node.inputs[0].id if node.inputs else None
        if node.op == CACHE_UPDATE and first in self._pairs:
            self._update(node, self._pairs[first])
        elif node.op in SWAPS and first in self._pairs:
            self._swap(node, self._pairs[first])
        elif any(value.id in self._pairs for value in node.inputs):
            self._attend(node)
        else:
            self._nodes.keep(node)

    def _update(self, node: Node, pair: _Pair) -> None:
        cache, update, index, axis, *rest = node.arguments
        assert isinstance(cache, Value)
        assert isinstance(update, Value)
        assert isinstance(axis, int)
        along = axis % len(cache.type.dims)
        new = self._pair(update)
        self._nodes.keep(Node("kvc::quantize_cache", (update,), new, node.source))
        updated = self._pairs[node.outputs[0].id] = self._pair(node.outputs[0])
        for old, part, result in zip(pair, new, updated, strict=True):
            arguments = (old, part, index, along, *rest)
            self._nodes.keep(Node(CACHE_UPDATE, arguments, (result,), node.source))

    def _swap(self, node: Node, pair: _Pair) -> None:
        axes = swapped_axes(node)
        swapped = self._pairs[node.outputs[0].id] = self._pair(node.outputs[0])
        for old, result, order in zip(pair, swapped, (axes, axes[:-1]), strict=True):
            arguments: tuple[Argument, ...] = (old, order)
            permuted = Node("aten::permute", arguments, (result,), node.source)
            self._nodes.keep(permuted)

    def _attend(self, node: Node) -> None:
        q, keys, values, *settings, _, _, counts = node.arguments
        assert isinstance(keys, Value)
        assert isinstance(values, Value)
        (k, k_scale), (v, v_scale) = self._pairs[keys.id], self._pairs[values.id]
        arguments = (q, k, v, *settings, k_scale, v_scale, counts)
        self._nodes.keep(replace(node, arguments=arguments))
