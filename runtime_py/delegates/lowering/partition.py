"""Lower a partition, at one set of sizes, to a function and a `Plan`.

In: a block that the device's support list takes. Out: the function's operations, and
the host's work before and after a call. An input that the block overwrites is a state
of the function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvc.runtime.delegates.host_checks import Writes
from kvc.runtime.delegates.host_runs import Handed, known_values
from kvc.runtime.delegates.lowering.builder import FLOAT, HALF, INT, Builder, NotTaken
from kvc.runtime.delegates.lowering.context import DeviceTraits, Made, OpContext
from kvc.runtime.delegates.lowering.function import Shape
from kvc.runtime.delegates.lowering.operators import OPERATORS
from kvc.runtime.delegates.lowering.plan import (
    OUTSIDE,
    Changed,
    Feed,
    Indexed,
    Looked,
    Plan,
    Take,
    index_name,
    value_name,
)
from kvc.runtime.delegates.operands import settled
from kvc.schema.backends.lowered_rules import (
    ATTENTION,
)
from kvc.schema.backends.primitives import Primitive
from kvc.schema.buckets import fixed_sizes
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.graph import Alias, Argument, Constant, Graph, Instruction, Ref
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing
from kvc.schema.types import Affine, Symbol, TensorType

Read = Callable[[object, str], str]
_P = Primitive


@frozen
class Names:
    """Names of a partition's function and operands.

    Attributes:
        function: name of the function.
        inputs: one name for each of the graph's inputs.
        outputs: one name for each of the graph's outputs.
    """

    function: str
    inputs: Sequence[str]
    outputs: Sequence[str]


def sizes_of(
    graph: Graph, symbols: Sequence[Symbol]
) -> tuple[Mapping[str, int], ...] | None:
    """Return all sets of sizes of a block's symbols.

    Symbols that occur only in arguments of instructions are included.

    Returns:
        The size of each symbol by its name, for each set; None if a symbol can have any
        value within its bounds.
    """
    types = [value.type for value in graph.values]
    said = (
        argument
        for instruction in graph.instructions
        for whole in instruction.arguments
        for argument in (whole if isinstance(whole, tuple) else (whole,))
        if isinstance(argument, Affine)
    )
    types += [TensorType(DType.INT64, (size,)) for size in said]
    return fixed_sizes(symbols, types)


def lower_partition(
    graph: Graph, sizes: Mapping[str, int], names: Names, traits: DeviceTraits
) -> Plan:
    """Return the plan of a block.

    Args:
        graph: the block's graph; the device's support list takes its operators.
        sizes: the sizes of the block's symbols.
        names: the names of the function, its inputs and its outputs.
        traits: the traits of the device.

    Raises:
        NotTaken: the host would have to read an intermediate result of the device, a
            number does not fit in the device's dtype, or the device does not take a
            tensor without elements.
    """
    return _PartitionLowering(graph, sizes, names, traits).plan()


class GraphLowering:
    """Lowers the instructions of graphs; callers and subclasses provide operands."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        traits: DeviceTraits,
        build: Builder | None = None,
    ) -> None:
        self._sizes, self._traits = sizes, traits
        self._build = build or Builder(traits.primitives)

    def lower(
        self, graph: Graph, instruction: Instruction, read: Read
    ) -> Sequence[str]:
        """Return the names of an instruction's results.

        Args:
            graph: the graph of the instruction.
            instruction: the instruction, of a supported operator.
            read: returns the name of an operand; constant floats get the given dtype.
        """
        results = instruction.results
        line = OpContext(
            self._build,
            read,
            [self.shape(graph, value) for value in results],
            [self.dtype(graph, value) for value in results],
            self._traits,
            self.note,
        )
        arguments = [settled(each, self._sizes) for each in instruction.arguments]
        own = self._traits.forms.get(instruction.op)
        made: Made = (own or OPERATORS[instruction.op])(line, *arguments)
        names = [made] if isinstance(made, str) else made
        pairs = zip(names, line.shapes, strict=True)
        return [self._build.reshape(name, shape) for name, shape in pairs]

    def note(self, at: str, least: int, most: int) -> None:
        """Record that all indices in `at` must be at least `least` and below `most`."""

    def dtype(self, graph: Graph, value: int) -> str:
        """Return the device's dtype for the dtype of a value."""
        return self._traits.dtypes[graph.values[value].type.dtype]

    def shape(self, graph: Graph, value: int) -> Shape:
        """Return the shape of a value.

        Raises:
            NotTaken: the value has no elements, which the device does not take.
        """
        shape = graph.values[value].type.shape(self._sizes)
        if 0 in shape and not self._traits.empty:
            raise NotTaken(f"a tensor of {list(shape)} has no elements")
        return shape


class BlockLowering(GraphLowering):
    """Lowers a block; the host has its inputs and constants, and views of these."""

    def __init__(
        self,
        graph: Graph,
        sizes: Mapping[str, int],
        traits: DeviceTraits,
        build: Builder | None = None,
    ) -> None:
        super().__init__(sizes, traits, build)
        self._graph = graph
        self._made: dict[int, str] = {}
        self._host = set[int]() if traits.readable else known_values(graph)

    def _views_host(self, instruction: Instruction) -> bool:
        """Tell whether an instruction is a view of a value that the host has."""
        first = instruction.arguments[0] if instruction.arguments else None
        is_view = OPS[instruction.op].aliasing is Aliasing.VIEW
        return is_view and isinstance(first, Ref) and first.value in self._host

    def _host_value(self, argument: Argument) -> int | None:
        """Return the id of a value that the host has; None if the argument is None.

        Raises:
            NotTaken: the partition computes the value.
        """
        if argument is None:
            return None
        assert isinstance(argument, Ref)
        if argument.value not in self._host:
            raise NotTaken(
                "the position of a cache access is computed inside the partition"
            )
        return argument.value

    def _check(self, instruction: Instruction) -> None:
        """Raise `NotTaken` unless the host has the operands of a check instruction."""
        for argument in instruction.arguments:
            if isinstance(argument, Ref):
                self._host_value(argument)


class _PartitionLowering(BlockLowering):
    def __init__(
        self, graph: Graph, sizes: Mapping[str, int], names: Names, traits: DeviceTraits
    ) -> None:
        super().__init__(graph, sizes, traits)
        self._called = names
        self._input_names = dict(zip(graph.inputs, names.inputs, strict=True))
        self._makers = {v: i for i in graph.instructions for v in i.results}
        self._caches = {
            argument.value
            for each in graph.instructions
            for argument in _caches_of(each)
            if isinstance(argument, Ref)
        }
        self._feeds: dict[int, str] = {}
        self._updates: dict[int, tuple[int, Writes]] = {}
        self._looked: dict[Looked, Looked] = {}
        self._seen = dict[int, None]()
        self._begins: list[int] = []
        self._indexed: dict[tuple[str, int, int], Indexed] = {}
        self._index = 0

    def plan(self) -> Plan:
        """Lower all instructions, and return the plan."""
        for index, instruction in enumerate(self._graph.instructions):
            self._index = index
            self._begins.append(self._build.count)
            self._lower(instruction)
        changed = self._changed()
        after = {
            each.name: self._made[self._graph.outputs[each.output]] for each in changed
        }
        takes, handed = self._takes({each.output for each in changed})
        outputs = {each.name: self._output(each) for each in takes}
        if self._traits.readable:
            outputs |= self._readable()
        elif self._indexed:
            outputs[OUTSIDE] = self._outside()
        function = self._build.function(self._called.function, after, outputs)
        feeds = {name: Feed(name, value) for value, name in self._feeds.items()}
        given = [*function.inputs, *(state.name for state in function.states)]
        return Plan(
            function,
            tuple(feeds[name] for name in given),
            tuple(takes),
            tuple(changed),
            tuple(handed),
            tuple(self._looked.values()),
            tuple(self._indexed.values()),
            tuple(self._begins),
        )

    def _lower(self, instruction: Instruction) -> None:
        if OPS[instruction.op].aliasing is Aliasing.CHECK:
            self._check(instruction)
            return
        if self._views_host(instruction):
            self._host |= {*instruction.results}
        self._look(instruction)
        made = self.lower(self._graph, instruction, self._read)
        self._made.update(zip(instruction.results, made, strict=True))

    def _look(self, instruction: Instruction) -> None:
        """Record the positions of a cache access, which the host checks."""
        given = instruction.arguments
        if instruction.op == CACHE_UPDATE:
            cache, update, start, _, mode, lengths, keep = given
            assert isinstance(cache, Ref)
            assert isinstance(update, Ref)
            assert isinstance(keep, int)
            where = self._host_value(start), self._host_value(lengths)
            count, slots = (
                self.shape(self._graph, each.value)[2] for each in (update, cache)
            )
            writes = Writes(*where, count, slots, str(mode), keep)
            self._note_access(Looked(self._index, writes))
            self._updates[instruction.results[0]] = cache.value, writes
        elif instruction.op == ATTENTION:
            q, k = given[:2]
            assert isinstance(q, Ref)
            assert isinstance(k, Ref)
            queries, slots = (self.shape(self._graph, each.value)[2] for each in (q, k))
            looked = Looked(
                self._index,
                None,
                self._host_value(given[3]),
                self._host_value(given[15]),
                queries,
                None if given[12] == "circular" else slots,
            )
            self._note_access(looked)

    def _note_access(self, looked: Looked) -> None:
        """Record a cache access, unless an equal access has been recorded."""
        self._looked.setdefault(replace(looked, instruction=0), looked)

    def _read(self, ref: object, dtype: str) -> str:
        """Return the name of an operand; constant floats get the given dtype."""
        assert isinstance(ref, Ref)
        value = ref.value
        storage = self._graph.values[value].storage
        own = self.dtype(self._graph, value)
        if isinstance(storage, Constant):
            kept = dtype if own == FLOAT else own
            shape = self.shape(self._graph, value)
            return self._build.weight(storage.name, kept, shape)
        if value not in self._made:
            name = self._input_names[value]
            self._made[value] = self._feeds[value] = name
            half = self._traits.half and value in self._caches
            dtype = HALF if half and own == FLOAT else own
            self._build.input(name, dtype, self.shape(self._graph, value))
        return self._made[value]

    def note(self, at: str, least: int, most: int) -> None:
        """Record an index that the function has to check."""
        self._indexed.setdefault((at, least, most), Indexed(self._index, least, most))

    def _host_value(self, argument: Argument) -> int | None:
        """Return the id of a value that the host has or reads; see `BlockLowering`."""
        if self._traits.readable and isinstance(argument, Ref):
            self._seen[argument.value] = None
            return argument.value
        return super()._host_value(argument)

    def _changed(self) -> list[Changed]:
        """Return the states: inputs of the graph whose new content is an output."""
        found: dict[int, Changed] = {}
        for number, value in enumerate(self._graph.outputs):
            root = self._written(value)
            if root is None or root in found:
                continue
            cache, writes = self._updates.get(value, (None, None))
            name = self._read(Ref(root), FLOAT)
            wanted = self._build.dtype(name)
            self._made[value] = self._build.cast(self._made[value], wanted)
            found[root] = Changed(name, number, root, writes if cache == root else None)
        return [*found.values()]

    def _written(self, value: int) -> int | None:
        """Return the id of the input whose new content is `value`; None if none is."""
        maker = self._makers.get(value)
        storage = self._graph.values[value].storage
        if maker is None or OPS[maker.op].aliasing is Aliasing.VIEW:
            return None
        root = self._graph.root_of(value)
        alike = self._graph.values[root].type == self._graph.values[value].type
        is_input = isinstance(storage, Alias) and root in self._input_names
        return root if is_input and alike else None

    def _takes(self, states: set[int]) -> tuple[list[Take], list[Handed]]:
        """Return the graph's outputs that are not new contents of states, in two lists.

        The first list has the outputs that the function returns; the second list has
        the outputs that the host has without the function. `states` has the indices of
        outputs that are new contents of states.
        """
        takes, handed = list[Take](), list[Handed]()
        for number, value in enumerate(self._graph.outputs):
            if value in self._host:
                handed.append(Handed(number, value))
            elif number not in states:
                takes.append(Take(self._called.outputs[number], number))
        return takes, handed

    def _output(self, take: Take) -> str:
        """Return a result's tensor, cast to the device's dtype for the result."""
        value = self._graph.outputs[take.output]
        made = self._read(Ref(value), FLOAT)
        return self._build.cast(made, self.dtype(self._graph, value))

    def _readable(self) -> dict[str, str]:
        """Return the tensors that the host reads and checks, by output name."""
        found = {value_name(v): self._read(Ref(v), FLOAT) for v in self._seen}
        names = enumerate(name for name, *_ in self._indexed)
        return found | {index_name(number): name for number, name in names}

    def _outside(self) -> str:
        """Return a tensor of two numbers for each recorded index, int32 [2 * indices].

        The two are the least and the greatest out-of-range element, or 0.
        """
        build, parts = self._build, list[str]()
        zero = build.number(0, INT)
        for name, least, most in self._indexed:
            low = build.binary(_P.GREATER, build.number(least, INT), name)
            high = build.with_number(_P.GREATER, name, most - 1)
            worst = build.where(build.binary(_P.OR, low, high), name, zero)
            axes = tuple(range(len(build.shape(worst))))
            for op in (_P.MIN, _P.MAX):
                parts.append(build.reshape(build.reduce(op, worst, axes), (1,)))
        return build.concat(parts, 0)


def _caches_of(instruction: Instruction) -> Sequence[Argument]:
    if instruction.op == CACHE_UPDATE:
        return instruction.arguments[:1]
    return instruction.arguments[1:3] if instruction.op == ATTENTION else ()
