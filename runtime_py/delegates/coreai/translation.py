"""Translate a partition, at one set of sizes, to a function of Core AI and a `Plan`.

In: a block that `kvc.schema.backends.coreai` supports. Out: the function's steps, and
the host's work before and after a call of the function. An input that the block
overwrites is a state of the function. Values of int64 become int32.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kvc.runtime.delegates.coreai.attention import (
    Ring,
    Seen,
    attend,
    attend_to_tokens,
    write,
)
from kvc.runtime.delegates.coreai.emitting import BOOL, FLOAT, HALF, INT, Emitter, Line
from kvc.runtime.delegates.coreai.function import Shape
from kvc.runtime.delegates.coreai.operators import EMITTERS
from kvc.runtime.delegates.coreai.plan import (
    OUTSIDE,
    Changed,
    Feed,
    Indexed,
    Looked,
    Plan,
    Take,
)
from kvc.runtime.delegates.host_checks import Writes
from kvc.runtime.delegates.host_runs import Handed
from kvc.runtime.delegates.operands import settled
from kvc.schema.backends.coreai import ATTENTION
from kvc.schema.buckets import fixed_sizes
from kvc.schema.dtypes import DType
from kvc.schema.frozen import frozen
from kvc.schema.graph import Alias, Argument, Constant, Graph, Instruction, Ref
from kvc.schema.ops import CACHE_UPDATE, OPS, Aliasing
from kvc.schema.types import Affine, Symbol, TensorType

_PRODUCT = "aten::scaled_dot_product_attention"
_DTYPES = {
    DType.FLOAT32: FLOAT,
    DType.FLOAT16: HALF,
    DType.INT64: INT,
    DType.INT32: INT,
    DType.BOOL: BOOL,
}


class NotTaken(Exception):
    """Raised if this backend does not take a block; the message has the reason."""


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


def translate(graph: Graph, sizes: Mapping[str, int], names: Names, half: bool) -> Plan:
    """Return the plan of a block.

    Args:
        graph: the block's graph; the backend supports all its operators.
        sizes: the sizes of the block's symbols.
        names: the names of the function, its inputs and its outputs.
        half: whether to compute in float16.

    Raises:
        NotTaken: the host would have to read an intermediate result of Core AI, or a
            tensor has no elements.
    """
    return _Translator(graph, sizes, names, half).translate()


class _Translator:
    def __init__(
        self, graph: Graph, sizes: Mapping[str, int], names: Names, half: bool
    ) -> None:
        self._graph, self._sizes, self._half = graph, sizes, half
        self._called, self._emitter = names, Emitter()
        self._input_names = dict(zip(graph.inputs, names.inputs, strict=True))
        self._made: dict[int, str] = {}
        self._host = {*graph.inputs}
        self._host |= {
            value
            for value, each in enumerate(graph.values)
            if isinstance(each.storage, Constant)
        }
        self._makers = {v: i for i in graph.instructions for v in i.results}
        self._caches = {
            argument.value
            for each in graph.instructions
            for argument in _caches_of(each)
            if isinstance(argument, Ref)
        }
        self._feeds: dict[int, str] = {}
        self._updates: dict[int, tuple[int, Writes]] = {}
        self._looked: list[Looked] = []
        self._indexed: dict[tuple[str, int, int], Indexed] = {}
        self._index = 0

    def translate(self) -> Plan:
        for index, instruction in enumerate(self._graph.instructions):
            self._index = index
            self._translate(instruction)
        changed = self._changed()
        after = {
            each.name: self._made[self._graph.outputs[each.output]] for each in changed
        }
        takes, handed = self._takes({each.output for each in changed})
        outputs = {each.name: self._output(each) for each in takes}
        if self._indexed:
            outputs[OUTSIDE] = self._outside()
        function = self._emitter.function(self._called.function, after, outputs)
        feeds = {name: Feed(name, value) for value, name in self._feeds.items()}
        given = [*function.inputs, *(state.name for state in function.states)]
        return Plan(
            function,
            tuple(feeds[name] for name in given),
            tuple(takes),
            tuple(changed),
            tuple(handed),
            tuple(self._looked),
            tuple(self._indexed.values()),
        )

    def _translate(self, instruction: Instruction) -> None:
        if instruction.op == CACHE_UPDATE:
            self._update(instruction)
        elif instruction.op == ATTENTION:
            self._attend(instruction)
        elif instruction.op == _PRODUCT:
            q, k, v, mask, causal, scale, _ = instruction.arguments
            assert isinstance(q, Ref)
            wanted = HALF if self._half else FLOAT
            operands = [
                self._emitter.cast(self._read(each, wanted), wanted)
                for each in (q, k, v)
            ]
            (result,) = instruction.results
            wide = (*self._shape(result)[:2], *self._shape(q.value)[2:])
            operands[0] = self._emitter.broadcast(operands[0], wide)
            self._made[result] = attend_to_tokens(
                self._emitter,
                operands,
                self._optional(mask),
                self._scale(scale, q),
                causal=bool(causal),
            )
        elif OPS[instruction.op].aliasing is Aliasing.CHECK:
            for argument in instruction.arguments:
                if isinstance(argument, Ref):
                    self._host_value(argument)
        else:
            self._compute(instruction)

    def _compute(self, instruction: Instruction) -> None:
        first = instruction.arguments[0] if instruction.arguments else None
        is_view = OPS[instruction.op].aliasing is Aliasing.VIEW
        if is_view and isinstance(first, Ref) and first.value in self._host:
            self._host |= {*instruction.results}
        line = Line(
            self._emitter,
            self._read,
            [self._shape(result) for result in instruction.results],
            [self._dtype(result) for result in instruction.results],
            self._half,
            self._note,
        )
        arguments = [settled(each, self._sizes) for each in instruction.arguments]
        made = EMITTERS[instruction.op](line, *arguments)
        given = [made] if isinstance(made, str) else made
        self._made.update(zip(instruction.results, given, strict=True))

    def _read(self, ref: object, dtype: str) -> str:
        """Return the name of an operand; a float constant gets the given dtype."""
        assert isinstance(ref, Ref)
        value = ref.value
        storage = self._graph.values[value].storage
        if isinstance(storage, Constant):
            own = self._dtype(value)
            kept = dtype if own == FLOAT else own
            return self._emitter.weight(storage.name, kept, self._shape(value))
        if value not in self._made:
            name = self._input_names[value]
            self._made[value] = self._feeds[value] = name
            own = self._dtype(value)
            self._emitter.input(
                name,
                HALF if self._half and value in self._caches and own == FLOAT else own,
                self._shape(value),
            )
        return self._made[value]

    def _dtype(self, value: int) -> str:
        return _DTYPES[self._graph.values[value].type.dtype]

    def _shape(self, value: int) -> Shape:
        shape = self._graph.values[value].type.shape(self._sizes)
        if 0 in shape:
            raise NotTaken(f"a tensor of {list(shape)} has no elements")
        return shape

    def _note(self, at: str, least: int, most: int) -> None:
        """Record that the function must check an index tensor against a range.

        Args:
            at: name of the index tensor.
            least: the least valid index.
            most: the exclusive maximum.
        """
        self._indexed.setdefault((at, least, most), Indexed(self._index, least, most))

    def _host_value(self, argument: Argument) -> int | None:
        """Return the id of an argument that the host has; None if the argument is None.

        Raises:
            NotTaken: the argument is computed inside the partition.
        """
        if argument is None:
            return None
        assert isinstance(argument, Ref)
        if argument.value not in self._host:
            raise NotTaken(
                "the position of a cache access is computed inside the partition"
            )
        return argument.value

    def _optional(self, argument: Argument) -> str | None:
        return None if argument is None else self._read(argument, FLOAT)

    def _update(self, instruction: Instruction) -> None:
        cache, update, start, _, mode, lengths, keep = instruction.arguments
        assert isinstance(cache, Ref)
        assert isinstance(update, Ref)
        assert isinstance(keep, int)
        slots, (result,) = self._shape(cache.value)[2], instruction.results
        writes = Writes(
            self._host_value(start),
            self._host_value(lengths),
            self._shape(update.value)[2],
            slots,
            str(mode),
            keep,
        )
        self._looked.append(Looked(self._index, writes))
        self._updates[result] = cache.value, writes
        self._made[result] = write(
            self._emitter,
            self._read(cache, FLOAT),
            self._read(update, FLOAT),
            self._optional(start),
            self._optional(lengths),
            Ring(mode == "circular", slots, keep),
        )

    def _attend(self, instruction: Instruction) -> None:
        given = instruction.arguments
        q, k, v, total, scale, causal, left, right, softcap, mask, slopes = given[:11]
        lengths, keep = given[15:]
        assert isinstance(q, Ref)
        assert isinstance(k, Ref)
        assert isinstance(keep, int)
        slots, queries = self._shape(k.value)[2], self._shape(q.value)[2]
        ring = Ring(given[12] == "circular", slots, keep)
        looked = Looked(
            self._index,
            None,
            self._host_value(total),
            self._host_value(lengths),
            queries,
            None if ring.circular else slots,
        )
        self._looked.append(looked)
        seen = Seen(
            self._read(total, FLOAT),
            self._optional(lengths),
            bool(causal),
            self._whole(left),
            self._whole(right),
            self._optional(mask),
            self._optional(slopes),
            ring,
        )
        wanted = HALF if self._half else FLOAT
        self._made[instruction.results[0]] = attend(
            self._emitter,
            self._emitter.cast(self._read(q, wanted), wanted),
            (self._read(k, wanted), self._read(v, wanted)),
            seen,
            self._scale(scale, q),
            softcap if isinstance(softcap, float) else None,
        )

    def _whole(self, argument: Argument) -> int | None:
        found = settled(argument, self._sizes)
        return found if isinstance(found, int) else None

    def _scale(self, scale: Argument, q: Ref) -> float:
        usual = float(1 / np.sqrt(self._shape(q.value)[-1]))
        return scale if isinstance(scale, float) else usual

    def _changed(self) -> list[Changed]:
        """Return the states: inputs of the graph whose new content is an output."""
        found: dict[int, Changed] = {}
        for number, value in enumerate(self._graph.outputs):
            root = self._written(value)
            if root is None or root in found:
                continue
            cache, writes = self._updates.get(value, (None, None))
            name = self._read(Ref(root), FLOAT)
            wanted = self._emitter.dtype(name)
            self._made[value] = self._emitter.cast(self._made[value], wanted)
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

        The first list has those that the function returns; the second, those that the
        host has without it. `states` has indices of outputs that are new contents of
        states.
        """
        takes, handed = list[Take](), list[Handed]()
        for number, value in enumerate(self._graph.outputs):
            if value in self._host:
                handed.append(Handed(number, value))
            elif number not in states:
                takes.append(Take(self._called.outputs[number], number))
        return takes, handed

    def _output(self, take: Take) -> str:
        """Return the name of a result, converted to its dtype in the graph."""
        value = self._graph.outputs[take.output]
        return self._emitter.cast(self._made[value], self._dtype(value))

    def _outside(self) -> str:
        """Return a tensor of two numbers for each recorded index, int32 [2 * indices].

        The two are the least and the greatest out-of-range value of the index, or 0.
        """
        emitter, parts = self._emitter, list[str]()
        zero = emitter.number(0, INT)
        for name, least, most in self._indexed:
            low = emitter.binary("greater", emitter.number(least, INT), name)
            high = emitter.with_number("greater", name, most - 1)
            worst = emitter.where(emitter.binary("or", low, high), name, zero)
            axes = tuple(range(len(emitter.shape(worst))))
            for op in ("min", "max"):
                parts.append(emitter.reshape(emitter.reduce(op, worst, axes), (1,)))
        return emitter.concat(parts, 0)


def _caches_of(instruction: Instruction) -> Sequence[Argument]:
    if instruction.op == CACHE_UPDATE:
        return instruction.arguments[:1]
    return instruction.arguments[1:3] if instruction.op == ATTENTION else ()
