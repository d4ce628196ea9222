"""Find the parts of a bound graph that depend on given symbols or callers' memory.

In: a graph, the blocks of its method, the symbols whose sizes have changed, and whether
the caller's arrays have moved. Out: the values whose tensors change, and the few
instructions that must be bound again. This output depends only on the code, so it is
computed once for each set of symbols. All other instructions keep their steps: a torch
tensor that changes its shape stays the same object. A numpy array cannot change its
shape and is replaced.
"""

from collections.abc import Iterator, Sequence

from kvc.schema.control import blocks_run, moved, read_control
from kvc.schema.frozen import frozen
from kvc.schema.graph import Alias, Argument, Caller, Graph, Instruction, Ref
from kvc.schema.ops import APPEND, CONTROL_OPS, OPS, REPLACE, Aliasing
from kvc.schema.types import Affine, Dim

Dims = tuple[Dim, ...]
# The results of these operators get their tensors when first requested.
_PLACED = {APPEND, REPLACE, *CONTROL_OPS}


@frozen
class Dependents:
    """The values and instructions that change with some symbols or callers' arrays.

    Attributes:
        values: the ids of all values that change.
        resized: the values to resize in place, grouped by dims: (dims, (value, root)
            pairs), where root is the value that owns the memory.
        instructions: the indices of the instructions to bind again, ascending.
        inputs, outputs: the indices of the graph's inputs and outputs that change.
    """

    values: frozenset[int]
    resized: tuple[tuple[Dims, tuple[tuple[int, int], ...]], ...]
    instructions: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Dependence:
    """The `Dependents` of one graph, cached for each set of changed symbols.

    `uses_torch` tells whether the graph's steps have torch tensors as arguments.
    """

    def __init__(
        self, graph: Graph, blocks: Sequence[Graph], uses_torch: bool = True
    ) -> None:
        self._graph, self._blocks, self._uses_torch = graph, blocks, uses_torch
        self._found: dict[tuple[frozenset[str], bool], Dependents] = {}

    def of(self, symbols: frozenset[str], callers: bool) -> Dependents:
        """Return what changes with symbols and, if `callers`, with callers' memory."""
        key = (symbols, callers)
        if key not in self._found:
            search = _Search(
                self._graph, self._blocks, self._uses_torch, symbols, callers
            )
            self._found[key] = search.find()
        return self._found[key]


class _Search:
    """Collects the values and instructions of one graph for its `Dependents`."""

    def __init__(
        self,
        graph: Graph,
        blocks: Sequence[Graph],
        uses_torch: bool,
        symbols: frozenset[str],
        callers: bool,
    ) -> None:
        self._graph, self._blocks, self._symbols = graph, blocks, symbols
        self._uses_torch = uses_torch
        self._values = {
            value
            for value, declared in enumerate(graph.values)
            if self._mentions(declared.type.dims)
            or (callers and isinstance(declared.storage, Caller))
        }

    def find(self) -> Dependents:
        graph = self._graph
        for instruction in graph.instructions:
            self._values.update(
                result for result in instruction.results if self._follows(result)
            )
        return Dependents(
            values=frozenset(self._values),
            resized=self._resized(),
            instructions=tuple(
                index
                for index, instruction in enumerate(graph.instructions)
                if self._is_bound_again(instruction)
            ),
            inputs=self._among(graph.inputs),
            outputs=self._among(graph.outputs),
        )

    def _follows(self, result: int) -> bool:
        """Tell whether a value is an alias of a value that changes."""
        storage = self._graph.values[result].storage
        return isinstance(storage, Alias) and storage.base in self._values

    def _is_bound_again(self, instruction: Instruction) -> bool:
        """Tell whether an instruction needs a new step, not only resized tensors.

        A view needs a new step since its tensor is made from its operand's tensor. An
        instruction with blocks is prepared for given arrays, and for sizes that may
        occur only inside the blocks. The step of an update that copies its operand has
        arrays as arguments. So has the step of a move of elements in a graph that does
        not use torch.
        """
        if self._says(instruction):
            return True
        if not self._uses_torch and moved(self._graph, instruction) is not None:
            return self._touches(instruction)
        match OPS[instruction.op].aliasing:
            case Aliasing.CONTROL:
                run = read_control(instruction.op, instruction.arguments).blocks
                if any(self._changes_within(block) for block in run):
                    return True
            case Aliasing.FRESH | Aliasing.CHECK:
                return False
            case Aliasing.UPDATE if self._aliased(instruction.results[0]):
                return False
        return self._touches(instruction)

    def _touches(self, instruction: Instruction) -> bool:
        """Tell whether an operand or result of an instruction changes."""
        used = {ref.value for ref in _refs(instruction.arguments)}
        return not self._values.isdisjoint(used.union(instruction.results))

    def _changes_within(self, block: int) -> bool:
        """Tell whether a block, or a block that it runs, uses a changed symbol."""
        graph = self._blocks[block]
        return (
            any(self._mentions(value.type.dims) for value in graph.values)
            or any(self._says(step) for step in graph.instructions)
            or any(self._changes_within(inner) for inner in blocks_run(graph))
        )

    def _resized(self) -> tuple[tuple[Dims, tuple[tuple[int, int], ...]], ...]:
        """Return the changing values to resize in place, grouped by their dims."""
        graph, roots = self._graph, self._graph.roots()
        over = {v for v in self._values if self._aliased(v)}
        for instruction in graph.instructions:
            if instruction.op in _PLACED:
                over.difference_update(instruction.results)
        by_dims: dict[Dims, list[tuple[int, int]]] = {}
        for value in sorted(self._values - over):
            dims = graph.values[value].type.dims
            by_dims.setdefault(dims, []).append((value, roots[value]))
        return tuple((dims, tuple(values)) for dims, values in by_dims.items())

    def _aliased(self, value: int) -> bool:
        return isinstance(self._graph.values[value].storage, Alias)

    def _among(self, values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i for i, value in enumerate(values) if value in self._values)

    def _says(self, instruction: Instruction) -> bool:
        """Tell whether an instruction's arguments contain a changed symbol."""
        return any(self._mentions(argument) for argument in instruction.arguments)

    def _mentions(self, argument: Argument | Dims) -> bool:
        """Tell whether an argument, or an item of a tuple, has a changed symbol."""
        if isinstance(argument, tuple):
            return any(self._mentions(item) for item in argument)
        if not isinstance(argument, Affine):
            return False
        return any(name in self._symbols for name in argument.symbols)


def _refs(arguments: tuple[Argument, ...]) -> Iterator[Ref]:
    for argument in arguments:
        if isinstance(argument, Ref):
            yield argument
        elif isinstance(argument, tuple):
            yield from _refs(argument)
