"""Translate a method, at one set of sizes, to a function of MIL.

In: a verified program, and a method that Core ML can run completely, since the method
has only partitions of this backend, and views. Out: a function whose inputs are those
of the method, and whose states are kept by Core ML or passed by the caller. Other
instructions raise `NotTaken`.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

from kvc.runtime.delegates.coreml.mil import (
    Data,
    Emitter,
    Function,
    NotTaken,
    Shape,
    Step,
    Tensor,
)
from kvc.runtime.delegates.coreml.operators import EMITTERS
from kvc.runtime.delegates.coreml.places import Places
from kvc.runtime.delegates.operands import settled
from kvc.schema.backends.coreml import ANCHORS, CACHE_UPDATE, why_not
from kvc.schema.backends.operands import arguments_of
from kvc.schema.control import read_control
from kvc.schema.dtypes import DType
from kvc.schema.graph import Constant, Graph, Instruction, Ref
from kvc.schema.model import Program
from kvc.schema.ops import DELEGATE, OPS, Aliasing

# Float16 values of a block, and exact ones.


_FLOATS = (DType.FLOAT32, DType.FLOAT16)


def computed_halves(graph: Graph) -> frozenset[int]:
    """Return the values that are computed in float16."""
    found = {
        number
        for number, value in enumerate(graph.values)
        if value.type.dtype is DType.FLOAT16 and not isinstance(value.storage, Constant)
    }
    for step in graph.instructions:
        if not step.results or graph.values[step.results[0]].type.dtype not in _FLOATS:
            continue
        if step.op in ANCHORS or found & _read(step):
            found |= {*step.results}
    return frozenset(found)


def stored_halves(graph: Graph) -> frozenset[int]:
    """Return the float32 values whose numbers are rounded to float16 when computed."""
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


def _read(step: Instruction) -> set[int]:
    """Return the ids of the operands from which an instruction computes its result.

    An update of a cache computes nothing from the cache itself.
    """
    given = step.arguments[1:2] if step.op == CACHE_UPDATE else step.arguments
    items = [i for a in given for i in (a if isinstance(a, tuple) else (a,))]
    return {item.value for item in items if isinstance(item, Ref)}


# Translation of a method, at one combination of sizes.


_DTYPES = {DType.INT64: "int32", DType.INT32: "int32", DType.BOOL: "bool"}


def translate(
    program: Program,
    method: int,
    sizes: Mapping[str, int],
    name: str,
    kept: frozenset[int],
) -> tuple[Function, frozenset[int]]:
    """Return the function of a method.

    Args:
        program: the verified program.
        method: index of the method.
        sizes: the sizes of the program's symbols.
        name: name of the function.
        kept: ids of the states that Core ML should keep, in float16.

    Returns:
        The function, and the ids of the states in `kept` to which the method assigns
        values that are not float16.

    Raises:
        NotTaken: the method cannot be expressed in MIL.
    """
    emitter = Emitter()
    places = Places(program, method, sizes, kept, emitter)
    whole = _Code(program, method, sizes, places, emitter)
    own = program.methods[method].graph
    found = whole.run(own, {v: places.value(v) for v in places.given}, places.roots)
    outputs = places.outputs([found[value] for value in own.outputs])
    function = Function(
        name,
        tuple(places.inputs),
        tuple(places.states),
        tuple(emitter.calls),
        outputs,
    )
    return function, frozenset(places.exact)


class _Code:
    """Translates graphs and the blocks within them."""

    def __init__(
        self,
        program: Program,
        method: int,
        sizes: Mapping[str, int],
        places: Places,
        emitter: Emitter,
    ) -> None:
        self._program, self._method = program, program.methods[method]
        self._sizes, self._places, self._emitter = sizes, places, emitter

    def run(
        self, graph: Graph, given: Mapping[int, Tensor], roots: Mapping[int, int]
    ) -> dict[int, Tensor]:
        """Translate a graph, and return the tensors of its values by value id.

        Args:
            graph: the graph of the method, or of a block.
            given: tensors by value, for the graph's inputs and other values that exist
                before its first instruction.
            roots: ids of states, by the values in `given` that are a whole state.
        """
        values, halves = dict(given), computed_halves(graph)
        for step in graph.instructions:
            if step.op == DELEGATE:
                self._enter(graph, step, values, roots)
            elif OPS[step.op].aliasing is not Aliasing.CHECK:
                self._translate(graph, step, values, halves, roots)
        return values

    def _enter(
        self,
        graph: Graph,
        step: Instruction,
        values: dict[int, Tensor],
        roots: Mapping[int, int],
    ) -> None:
        """Translate a partition's block where it is run; results go to `values`."""
        control = read_control(step.op, step.arguments)
        (block,) = control.blocks
        inner = self._method.blocks[block].graph
        given, own = dict[int, Tensor](), dict[int, int]()
        for value, operand in zip(inner.inputs, control.operands, strict=True):
            assert isinstance(operand, Ref)
            given[value] = self._read(graph, values, operand, "")
            if operand.value in roots:
                own[value] = roots[operand.value]
            elif (state := roots.get(graph.root_of(operand.value))) is not None:
                self._places.refuse_writes(inner, value, state)
        made = self.run(inner, given, own)
        for outer, value in zip(step.results, inner.outputs, strict=True):
            state = roots.get(graph.root_of(outer))
            copied = state is not None and inner.root_of(value) not in own
            values[outer] = (
                self._places.write(state, made[value])
                if copied and state is not None
                else made[value]
            )

    def _translate(
        self,
        graph: Graph,
        step: Instruction,
        values: dict[int, Tensor],
        halves: frozenset[int],
        roots: Mapping[int, int],
    ) -> None:
        types = [graph.values[value].type for value in step.results]
        reason = why_not(step.op, arguments_of(graph, step), types)
        if reason:
            of = "" if step.op in reason else f"{step.op}: "
            raise NotTaken(f"Core ML does not run all of the method: {of}{reason}")
        own = Step(
            self._emitter,
            partial(self._read, graph, values),
            partial(self._constant, graph),
            partial(self._common, graph, halves),
            self._dtype(graph, step.results[0], halves),
            [self._shape(graph, value) for value in step.results],
        )
        arguments = [settled(each, self._sizes) for each in step.arguments]
        made = EMITTERS[step.op](own, *arguments)
        results = made if isinstance(made, list) else [made]
        for value, tensor in zip(step.results, results, strict=True):
            assert tensor.shape == self._shape(graph, value), (step.op, tensor)
            values[value] = self._written(graph, step, value, tensor, roots)

    def _written(
        self,
        graph: Graph,
        step: Instruction,
        value: int,
        made: Tensor,
        roots: Mapping[int, int],
    ) -> Tensor:
        """Return the tensor of a result.

        If the result shares the memory of a state, it is first assigned to this state.
        """
        root = graph.root_of(value)
        if OPS[step.op].aliasing is Aliasing.VIEW or root == value:
            return made
        if root not in roots:
            if graph is self._method.graph and root in graph.inputs:
                raise NotTaken("a caller's array is written")
            return made
        if self._shape(graph, root) != made.shape:
            raise NotTaken("a part of a state is written")
        return self._places.write(roots[root], made)

    def _read(
        self, graph: Graph, values: dict[int, Tensor], ref: object, dtype: str
    ) -> Tensor:
        """Return an operand's tensor, converted to `dtype`; "" means no conversion."""
        assert isinstance(ref, Ref)
        kind = graph.values[ref.value]
        if isinstance(kind.storage, Constant):
            exact = "fp32" if kind.type.dtype in _FLOATS else _DTYPES[kind.type.dtype]
            return self._emitter.cast(self._constant(graph, ref, exact), dtype or exact)
        found = values.get(ref.value)
        if found is None:
            raise NotTaken(
                "its operand is computed by an instruction outside of Core ML"
            )
        return self._emitter.cast(found, dtype) if dtype else found

    def _constant(self, graph: Graph, ref: object, dtype: str) -> Data:
        assert isinstance(ref, Ref)
        storage = graph.values[ref.value].storage
        assert isinstance(storage, Constant), "the list has checked this"
        name = self._program.names[storage.name].name
        shape = self._shape(graph, ref.value)
        word = re.sub(r"\W", "_", name, flags=re.ASCII)
        return Data(f"w{storage.name}_{word}_{dtype}", storage.name, dtype, shape)

    def _common(
        self, graph: Graph, halves: frozenset[int], operands: Sequence[object]
    ) -> str:
        """Return the dtype to compare operands in: the most exact of their dtypes."""
        found = [
            self._dtype(graph, each.value, halves)
            for each in operands
            if isinstance(each, Ref)
        ]
        return "fp32" if "fp32" in found else found[0]

    def _dtype(self, graph: Graph, value: int, halves: frozenset[int]) -> str:
        dtype = graph.values[value].type.dtype
        if dtype in _FLOATS:
            return "fp16" if value in halves else "fp32"
        return _DTYPES[dtype]

    def _shape(self, graph: Graph, value: int) -> Shape:
        return graph.values[value].type.shape(self._sizes) or (1,)
