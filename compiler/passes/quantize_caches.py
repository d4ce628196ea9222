"""Make caches int8: quantize rows as they are written, and let attention read them.

A float state that `kvc::cache_update` writes and `kvc::attention` reads becomes two
states: int8 rows under the name of the float state, and a float32 scale for each row
under `NAME.scale`, with the same axis of slots. Each write becomes
`kvc::quantize_cache` and two updates at the same slots; attention takes the scales.
Branches and loops that take a cache take and return rows and scales. Between a state
and attention, views can permute axes, except the last axis, and can take parts of rows.
Any other reader or writer of a cache is an error, since it would compute different
results.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.analysis.cache_flow import CacheFlow, passed_inputs
from kvc.compiler.analysis.caches import CACHE_UPDATE, find_caches, is_part_of_rows
from kvc.compiler.analysis.whole_views import axis_order
from kvc.compiler.ir import Argument, Method, Node, Program, State, Value, bound_to
from kvc.compiler.ir.arguments import with_named
from kvc.compiler.ir.control import arguments_of, blocks_by_number, control_of, entries
from kvc.compiler.ir.rewrite import NodeList, each_method, rename_node, rename_results
from kvc.schema.control import Control
from kvc.schema.dtypes import DType
from kvc.schema.ops import PERMUTING
from kvc.schema.types import TensorType

_Pair = tuple[Value, Value]  # int8 rows and their scales


@dataclass(frozen=True, slots=True)
class QuantizeCaches:
    """Store the caches of a program as int8."""

    name: ClassVar[str] = "quantize-caches"

    def run(self, program: Program) -> Program:
        """Return the program over int8 caches.

        Raises:
            CacheDtypeRefused: another kind of node reads or writes a cache, or the
                program has no such cache.
        """
        scales = _names_of_scales(program, find_caches(program, DType.INT8))
        blocks = blocks_by_number(program)
        changed = {
            m.name: _Rewriter(m, scales, blocks).method() for m in entries(program)
        }
        changed |= {block.name: block for block in blocks.values()}
        methods = tuple(changed[method.name] for method in program.methods)
        states = [part for s in program.states for part in _parts(s, scales)]
        return replace(program, methods=methods, states=tuple(states))


def _names_of_scales(program: Program, caches: Sequence[str]) -> dict[str, str]:
    """Return name of a float state -> unused name for the state of its scales."""
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
    """Return the types of the rows and of the scales of a float cache."""
    scale = TensorType(DType.FLOAT32, cache.dims[:-1])
    return TensorType(DType.INT8, cache.dims), scale


class _Rewriter:
    """Rewrites one method over int8 caches.

    `_pairs` maps the id of a float cache to the values of its rows and scales. `blocks`
    are the blocks of the program as rewritten so far. `cached` are the inputs of a
    block that are caches.
    """

    def __init__(
        self,
        method: Method,
        scales: Mapping[str, str],
        blocks: dict[int, Method],
        cached: Sequence[Value] = (),
    ) -> None:
        self._method, self._scales, self._blocks = method, scales, blocks
        self._nodes = NodeList(method)
        self._pairs: dict[int, _Pair] = {v.id: self._pair(v) for v in cached}

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

    def block(self) -> Method:
        """Return the block, with rows and scales in place of caches."""
        for node in self._method.nodes:
            self._rewrite(node)
        block = self._method
        inputs = self.parts(block.inputs)
        filled = {block.inputs[i].id for i in block.filled}
        return replace(
            block,
            inputs=inputs,
            input_names=tuple(f"%{value.id}" for value in inputs),
            nodes=tuple(self._nodes.nodes),
            outputs=self.parts(block.outputs),
            filled=tuple(i for i, value in enumerate(inputs) if value.id in filled),
        )

    def parts(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return `values`, with rows and scales in place of each cache."""
        return tuple(p for v in values for p in self._pairs.get(v.id, (v,)))

    def has(self, value: Value) -> bool:
        """Tell whether a value is a cache."""
        return value.id in self._pairs

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
        """Return two new values: for the int8 rows and for the scales of a cache."""
        rows, scale = _types(value.type)
        return self._nodes.value(rows), self._nodes.value(scale)

    def _rewrite(self, node: Node) -> None:
        first = node.inputs[0].id if node.inputs else None
        control = control_of(node)
        if control is not None:
            self._run_blocks(node, control)
        elif node.op == CACHE_UPDATE and first in self._pairs:
            self._update(node, self._pairs[first])
        elif node.op in PERMUTING and first in self._pairs:
            self._swap(node, self._pairs[first])
        elif is_part_of_rows(node) and first in self._pairs:
            self._take_part(node, self._pairs[first])
        elif any(value.id in self._pairs for value in node.inputs):
            self._attend(node)
        else:
            self._nodes.keep(node)

    def _run_blocks(self, node: Node, control: Control[Value]) -> None:
        """Add a control node whose blocks take and return rows and scales."""
        for which, number in enumerate(control.blocks):
            block = self._blocks[number]
            cached = passed_inputs(control, block, self._pairs)
            inside = _Rewriter(block, self._scales, self._blocks, cached)
            self._blocks[number] = inside.block()
            if not control.tests(which):
                for value, result in zip(block.outputs, node.outputs, strict=True):
                    if inside.has(value) and not self.has(result):
                        self._pairs[result.id] = self._pair(result)
        results = self.parts(node.outputs)
        carried = self.parts(control.operands[: control.carried])
        changed = replace(
            control,
            operands=self.parts(control.operands),
            over=(None,) * len(results),
            carried=len(carried),
        )
        self._nodes.keep(
            replace(node, arguments=arguments_of(changed), outputs=results)
        )

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
        axes = axis_order(node)
        swapped = self._pairs[node.outputs[0].id] = self._pair(node.outputs[0])
        for old, result, order in zip(pair, swapped, (axes, axes[:-1]), strict=True):
            arguments: tuple[Argument, ...] = (old, order)
            self._nodes.keep(Node("aten::permute", arguments, (result,), node.source))

    def _take_part(self, node: Node, pair: _Pair) -> None:
        """Add a node that takes a part of each int8 row; the row keeps its scale."""
        whole, scale = pair
        (part,) = node.outputs
        rows = self._nodes.value(_types(part.type)[0])
        self._pairs[part.id] = rows, scale
        arguments = (whole, *node.arguments[1:])
        self._nodes.keep(replace(node, arguments=arguments, outputs=(rows,)))

    def _attend(self, node: Node) -> None:
        _, keys, values, *_ = node.inputs
        (k, k_scale), (v, v_scale) = self._pairs[keys.id], self._pairs[values.id]
        caches = {"k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale}
        self._nodes.keep(with_named(node, caches))


# Make caches float16: round rows as they are written, compute with them in float32.


@dataclass(frozen=True, slots=True)
class NarrowCaches:
    """Store the caches of a program as float16."""

    name: ClassVar[str] = "narrow-caches"

    def run(self, program: Program) -> Program:
        """Return the program over float16 caches.

        Raises:
            CacheDtypeRefused: another kind of node reads or writes a cache, a cache is
                not float32, or the program has no cache.
        """
        caches = find_caches(program, DType.FLOAT16)
        flow = CacheFlow(blocks_by_number(program), _leads_on, every=False)
        names: dict[str, dict[int, Value]] = {m.name: {} for m in program.methods}
        for method in entries(program):
            begins = [value for value, name in method.state_in if name in caches]
            for where, values in flow.values(method, begins).items():
                names[where] |= {
                    i: replace(value, type=TensorType(DType.FLOAT16, value.type.dims))
                    for i, value in values.items()
                }
        states = tuple(_narrow_state(s, caches) for s in program.states)
        changed = each_method(program, lambda method: _with(method, names[method.name]))
        return replace(changed, states=states)


def _leads_on(node: Node) -> bool:
    return node.op == CACHE_UPDATE or node.op in PERMUTING or is_part_of_rows(node)


def _narrow_state(state: State, caches: Iterable[str]) -> State:
    if state.name not in caches:
        return state
    return replace(state, type=TensorType(DType.FLOAT16, state.type.dims))


def _with(method: Method, names: Mapping[int, Value]) -> Method:
    """Return a method or block with some values replaced, given by id."""

    def named(values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(names.get(value.id, value) for value in values)

    nodes = (rename_node(node, names) for node in method.nodes)
    return replace(
        rename_results(method, names),
        inputs=named(method.inputs),
        state_in=tuple((names.get(v.id, v), name) for v, name in method.state_in),
        nodes=tuple(replace(node, outputs=named(node.outputs)) for node in nodes),
    )
