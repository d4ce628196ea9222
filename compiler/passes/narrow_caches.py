"""Make caches float16: round rows as they are written, compute with them in float32.

A float32 state that `kvc::cache_update` writes and `kvc::attention` reads becomes
float16, and so do all values made from it: its versions, views with other axes or of
parts of rows, what branches and loops take and return. The two operators take float16
caches beside float32, so nothing else changes. Any other reader or writer of a cache is
an error, since its results would change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from kvc.compiler.analysis.cache_flow import CacheFlow
from kvc.compiler.analysis.caches import CACHE_UPDATE, find_caches, is_part_of_rows
from kvc.compiler.ir import Method, Node, Program, State, Value
from kvc.compiler.ir.control import blocks_by_number, entries
from kvc.compiler.ir.rewrite import each_method, rename_node, rename_results
from kvc.schema.dtypes import DType
from kvc.schema.ops import PERMUTING
from kvc.schema.types import TensorType


@dataclass(frozen=True, slots=True)
class NarrowCaches:
    """Store the caches of a program as float16."""

    name: ClassVar[str] = "narrow-caches"

    def run(self, program: Program) -> Program:
        """Return the program over float16 caches.

        Raises:
            CacheDtypeRefused: a cache is read or written in another way, is not
                float32, or there is none.
        """
        caches = find_caches(program, DType.FLOAT16)
        flow = CacheFlow(blocks_by_number(program), _leads_on, every=False)
        names: dict[str, dict[int, Value]] = {m.name: {} for m in program.methods}
        for method in entries(program):
            begins = [value for value, name in method.state_in if name in caches]
            for where, values in flow.values(method, begins).items():
                names[where] |= {i: _narrow(value) for i, value in values.items()}
        states = tuple(_narrow_state(s, caches) for s in program.states)
        changed = each_method(program, lambda method: _with(method, names[method.name]))
        return replace(changed, states=states)


def _leads_on(node: Node) -> bool:
    return node.op == CACHE_UPDATE or node.op in PERMUTING or is_part_of_rows(node)


def _narrow(value: Value) -> Value:
    return replace(value, type=TensorType(DType.FLOAT16, value.type.dims))


def _narrow_state(state: State, caches: Iterable[str]) -> State:
    if state.name not in caches:
        return state
    return replace(state, type=TensorType(DType.FLOAT16, state.type.dims))


def _with(method: Method, names: Mapping[int, Value]) -> Method:
    """Return a method, or a block, with values of other types."""

    def named(values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(names.get(value.id, value) for value in values)

    nodes = (rename_node(node, names) for node in method.nodes)
    return replace(
        rename_results(method, names),
        inputs=named(method.inputs),
        state_in=tuple((names.get(v.id, v), name) for v, name in method.state_in),
        nodes=tuple(replace(node, outputs=named(node.outputs)) for node in nodes),
    )
