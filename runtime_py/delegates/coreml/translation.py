"""Translate a method, at one set of sizes, to a function of MIL.

In: a verified program, and a method of only views and partitions of this backend. Out:
a function whose inputs are those of the method, and whose states are kept by Core ML or
passed by the caller. Other instructions raise `NotTaken`. Which floats are float16
follows from the graph alone, since the host rounds the same values.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from kvc.runtime.delegates.coreml.calls import function_of
from kvc.runtime.delegates.coreml.forms import FORMS
from kvc.runtime.delegates.coreml.mil import Function
from kvc.runtime.delegates.coreml.places import Places
from kvc.runtime.delegates.lowering.builder import FLOAT, HALF, NotTaken
from kvc.runtime.delegates.lowering.context import DeviceTraits
from kvc.runtime.delegates.lowering.function import Shape
from kvc.runtime.delegates.lowering.partition import GraphLowering
from kvc.schema.backends.coreml import ANCHORS, PRIMITIVES, why_not
from kvc.schema.backends.operands import arguments_of
from kvc.schema.control import read_control
from kvc.schema.dtypes import DType
from kvc.schema.graph import Argument, Constant, Graph, Instruction, Ref
from kvc.schema.model import Program
from kvc.schema.ops import CACHE_UPDATE, DELEGATE, OPS, Aliasing

# Float16 values and exact values of a block.


_FLOATS = (DType.FLOAT32, DType.FLOAT16)


def computed_halves(graph: Graph) -> frozenset[int]:
    """Return the ids of the values that are computed in float16."""
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
    """Return the ids of float32 values whose numbers are rounded to float16."""
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
    """Return the ids of the operands from which an instruction computes the result.

    An update of a cache computes nothing from the cache itself.
    """
    return _refs(step.arguments[1:2] if step.op == CACHE_UPDATE else step.arguments)


def _refs(arguments: Sequence[Argument]) -> set[int]:
    """Return the ids of the values among arguments and in lists among arguments."""
    items = [i for a in arguments for i in (a if isinstance(a, tuple) else (a,))]
    return {item.value for item in items if isinstance(item, Ref)}


# Translation of a method, at one combination of sizes.


TRAITS = DeviceTraits(
    PRIMITIVES,
    {
        DType.FLOAT32: FLOAT,
        DType.FLOAT16: HALF,
        DType.INT64: "int32",
        DType.INT32: "int32",
        DType.INT8: "int8",
        DType.BOOL: "bool",
    },
    half=True,
    wide=False,
    checked=False,
    zeroed=True,
    forms=FORMS,
)


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
    return _MethodLowering(program, method, sizes, kept).function(name)


class _MethodLowering(GraphLowering):
    """Lowers the graph of a method, and the blocks of its partitions."""

    def __init__(
        self,
        program: Program,
        method: int,
        sizes: Mapping[str, int],
        kept: frozenset[int],
    ) -> None:
        super().__init__(sizes, TRAITS)
        self._program, self._method = program, program.methods[method]
        self._places = Places(program, method, sizes, kept, self._build, TRAITS)

    def function(self, name: str) -> tuple[Function, frozenset[int]]:
        """Return what `translate` returns; `name` is the name of the function."""
        places, own = self._places, self._method.graph
        found = self._run(own, {v: places.value(v) for v in places.given}, places.roots)
        made = places.function(name, [found[value] for value in own.outputs])
        names = [each.name for each in self._program.names]
        return function_of(made, names), frozenset(places.exact)

    def shape(self, graph: Graph, value: int) -> Shape:
        """Return the shape of a value in MIL, where a number has one axis."""
        return super().shape(graph, value) or (1,)

    def _run(
        self, graph: Graph, given: Mapping[int, str], roots: Mapping[int, int]
    ) -> dict[int, str]:
        """Lower a graph, and return the tensors of the graph's values by value id.

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
                self._lower(graph, step, values, halves, roots)
        return values

    def _enter(
        self,
        graph: Graph,
        step: Instruction,
        values: dict[int, str],
        roots: Mapping[int, int],
    ) -> None:
        """Lower the block of a partition, and add the partition's results to `values`.

        Args:
            graph: the method's graph.
            step: the instruction that runs the partition.
            values: tensors of the graph's values, by value id.
            roots: ids of states, by the values that are a whole state.

        Raises:
            NotTaken: the block cannot be expressed in MIL.
        """
        control = read_control(step.op, step.arguments)
        (block,) = control.blocks
        inner = self._method.blocks[block].graph
        given, own = dict[int, str](), dict[int, int]()
        for value, operand in zip(inner.inputs, control.operands, strict=True):
            assert isinstance(operand, Ref)
            given[value] = self._tensor(graph, values, operand.value, FLOAT)
            if operand.value in roots:
                own[value] = roots[operand.value]
            elif (state := roots.get(graph.root_of(operand.value))) is not None:
                self._places.refuse_writes(inner, value, state)
        made = self._run(inner, given, own)
        for outer, value in zip(step.results, inner.outputs, strict=True):
            state = roots.get(graph.root_of(outer))
            copied = state is not None and inner.root_of(value) not in own
            values[outer] = (
                self._places.write(state, made[value])
                if copied and state is not None
                else made[value]
            )

    def _lower(
        self,
        graph: Graph,
        step: Instruction,
        values: dict[int, str],
        halves: frozenset[int],
        roots: Mapping[int, int],
    ) -> None:
        types = [graph.values[value].type for value in step.results]
        reason = why_not(step.op, arguments_of(graph, step), types)
        if reason:
            of = "" if step.op in reason else f"{step.op}: "
            raise NotTaken(f"Core ML does not run all of the method: {of}{reason}")
        self._check_rows(graph, step)
        read = partial(self._read, graph, step, values, halves)
        for value, made in zip(
            step.results, self.lower(graph, step, read), strict=True
        ):
            if graph.values[value].type.dtype in _FLOATS:
                dtype = self._build.dtype(made)
                assert dtype == (HALF if value in halves else FLOAT), step
            values[value] = self._written(graph, step, value, made, roots)

    def _check_rows(self, graph: Graph, step: Instruction) -> None:
        """Check that a linear cache has slots for all rows that an update writes.

        Raises:
            NotTaken: the cache has fewer slots.
        """
        if step.op != CACHE_UPDATE:
            return
        cache, update, *_, mode, lengths, _ = step.arguments
        assert isinstance(cache, Ref)
        assert isinstance(update, Ref)
        slots, count = (self.shape(graph, each.value)[2] for each in (cache, update))
        if lengths is None and mode == "linear" and count > slots:
            raise NotTaken(f"{count} rows are written to a cache of {slots}")

    def _written(
        self,
        graph: Graph,
        step: Instruction,
        value: int,
        made: str,
        roots: Mapping[int, int],
    ) -> str:
        """Return the tensor of a result.

        A result that shares the memory of a state is first assigned to the state.

        Raises:
            NotTaken: the instruction writes an array of the caller, or a part of a
                state.
        """
        root = graph.root_of(value)
        if OPS[step.op].aliasing is Aliasing.VIEW or root == value:
            return made
        if root not in roots:
            if graph is self._method.graph and root in graph.inputs:
                raise NotTaken("a caller's array is written")
            return made
        if self.shape(graph, root) != self._build.shape(made):
            raise NotTaken("a part of a state is written")
        return self._places.write(roots[root], made)

    def _read(
        self,
        graph: Graph,
        step: Instruction,
        values: Mapping[int, str],
        halves: frozenset[int],
        ref: object,
        dtype: str,
    ) -> str:
        """Return the tensor of an operand; floats that the host rounds are float16.

        A tensor that the instruction overwrites has the dtype of the result. If the
        result is not a float, all float operands are float16, or all are float32.
        """
        assert isinstance(ref, Ref)
        value, kind = ref.value, graph.values[ref.value].type.dtype
        result = graph.values[step.results[0]].type.dtype
        is_half = value in halves
        if isinstance(graph.values[value].storage, Constant):
            stored = kind is DType.FLOAT16 and halves >= {*step.results}
            return self._tensor(graph, values, value, HALF if stored else dtype)
        if OPS[step.op].aliasing is Aliasing.UPDATE and ref == step.arguments[0]:
            is_half = step.results[0] in halves
        elif result not in _FLOATS:
            is_half = all(
                each in halves or graph.values[each].type.dtype not in _FLOATS
                for each in _refs(step.arguments)
            )
        found = self._tensor(graph, values, value, dtype)
        if kind not in _FLOATS:
            return found
        return self._build.cast(found, HALF if is_half or dtype == HALF else FLOAT)

    def _tensor(
        self, graph: Graph, values: Mapping[int, str], value: int, dtype: str
    ) -> str:
        """Return the tensor of a value; a constant of floats gets the given dtype.

        Raises:
            NotTaken: an instruction that Core ML does not run computes the value.
        """
        storage = graph.values[value].storage
        if isinstance(storage, Constant):
            kind = graph.values[value].type.dtype
            wanted = dtype if kind in _FLOATS else self.dtype(graph, value)
            return self._build.weight(storage.name, wanted, self.shape(graph, value))
        if value not in values:
            raise NotTaken(
                "its operand is computed by an instruction outside of Core ML"
            )
        return values[value]
