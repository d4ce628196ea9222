"""Which values of a block are float16, and which stay exact.

What products, norms and lookups in tables make is float16, and so is what is computed
with it. All else is float32: positions, angles, tables of angles. Where only float16 is
computed with such a value, it is rounded when it has been made.
"""

from kvc.schema.backends.coreml import ANCHORS, CACHE_UPDATE
from kvc.schema.dtypes import DType
from kvc.schema.graph import Constant, Graph, Instruction, Ref
from kvc.schema.ops import OPS, Aliasing

_FLOATS = (DType.FLOAT32, DType.FLOAT16)


def computed_halves(graph: Graph) -> frozenset[int]:
    """Return the values that are computed in float16."""
    found = {
        number
        for number, value in enumerate(graph.values)
        if value.type.dtype is DType.FLOAT16 and not isinstance(value.storage, Constant)
    }
    for step in graph.instructions:
        if not step.results or not _is_float(graph, step.results[0]):
            continue
        if step.op in ANCHORS or found & _read(step):
            found |= {*step.results}
    return frozenset(found)


def stored_halves(graph: Graph) -> frozenset[int]:
    """Return the values that are rounded to float16 once they have been made."""
    halves = computed_halves(graph)
    exact = {value for value in graph.outputs if value not in halves}
    for step in reversed(graph.instructions):
        if not step.results:
            continue
        if OPS[step.op].aliasing is Aliasing.VIEW:
            if exact & {*step.results}:
                exact |= _read(step)
        elif not (halves & {*step.results}):
            exact |= _read(step)
    return frozenset(
        number
        for number, value in enumerate(graph.values)
        if value.type.dtype is DType.FLOAT32
        and (number in halves or number not in exact)
        and not isinstance(value.storage, Constant)
    )


def _is_float(graph: Graph, value: int) -> bool:
    return graph.values[value].type.dtype in _FLOATS


def _read(step: Instruction) -> set[int]:
    """Return the operands of an instruction that its result is computed with."""
    given = step.arguments[1:2] if step.op == CACHE_UPDATE else step.arguments
    items = [i for a in given for i in (a if isinstance(a, tuple) else (a,))]
    return {item.value for item in items if isinstance(item, Ref)}
