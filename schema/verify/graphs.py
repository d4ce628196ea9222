"""Checks of one graph: values, single definition, storage, operator signatures.

In: a graph, and the constants and states that it can use. Out: the operands of each
instruction, which the memory check needs, or `BadProgram`. `values.py` checks values,
`results.py` the storage of results, `signatures.py` arguments and shapes.
"""

from collections.abc import Sequence
from typing import NoReturn

from kvc.schema.control import WITH_WORKSPACE
from kvc.schema.graph import Argument, Constant, Graph, Instruction, Ref
from kvc.schema.ops import OPS
from kvc.schema.types import TensorType
from kvc.schema.verify.effects import effects
from kvc.schema.verify.limits import (
    MAX_INSTRUCTIONS,
    MAX_TENSOR_NBYTES,
    MAX_VALUES,
    Reporter,
    place,
)
from kvc.schema.verify.memory import check_memory
from kvc.schema.verify.results import BadResult, Definitions
from kvc.schema.verify.signatures import Misfit, check_signature
from kvc.schema.verify.values import Surroundings, ValueChecker

Operands = list[tuple[int, ...]]


def _content(graph: Graph, around: Surroundings) -> tuple[object, ...]:
    """Return the key under which the result of a block's check is cached.

    The key compares parts of the graph by identity. For a constant, the key has the
    type of the value and the type of the named data.
    """
    types = around.constants
    values: list[object] = []
    for value in graph.values:
        name = value.storage.name if type(value.storage) is Constant else None
        if name is not None and 0 <= name < len(types):
            values.append((id(value.type), id(types[name])))
        else:
            values.append(id(value))
    code = [(s.op, id(s.arguments), id(s.results)) for s in graph.instructions]
    sizes = graph.scratch_nbytes, graph.peak_nbytes
    ends = graph.inputs, graph.outputs
    return (*values, len(values), *code, *ends, *sizes)


class GraphChecker:
    """Checker of the graphs of one program; equal instructions are checked once."""

    def __init__(self, report: Reporter) -> None:
        self.report = report
        self._fitting: set[tuple[object, ...]] = set()
        self._lists: dict[
            int, tuple[object, tuple[int, ...], tuple[object, ...] | None]
        ] = {}
        self._types: dict[int, tuple[TensorType, object]] = {}
        self._sources: set[str] = set()
        self._blocks: dict[
            tuple[object, ...], tuple[Graph, Operands, tuple[int, ...]]
        ] = {}

    def check(self, graph: Graph, around: Surroundings, thorough: bool) -> Operands:
        """Check a graph and its memory; return the operands of each instruction.

        Raises:
            BadProgram, LimitExceeded: the graph is wrong.
        """
        self._check_sources(graph, around.where)
        operands = self._check_graph(graph, around)
        check_memory(graph, operands, around.where, self.report, thorough)
        return operands

    def check_block(
        self, graph: Graph, around: Surroundings, thorough: bool
    ) -> tuple[Operands, tuple[int, ...]]:
        """Check a block's graph as `check` does; also return which instructions write.

        The result is the operands of each instruction, and the indices of the
        instructions that write to lent memory: memory that the block's inputs share
        with operands of the instruction that runs the block. The blocks of equal layers
        are checked once: after decoding, equal parts of graphs are the same object.
        """
        key = _content(graph, around)
        found = self._blocks.get(key)
        if found is None:
            operands = self.check(graph, around, thorough)
            updates = effects(graph, operands).updates
            # Keeping the graph alive keeps the ids of its parts unique.
            found = self._blocks[key] = graph, operands, updates
        else:
            self._check_sources(graph, around.where)
        return found[1:]

    def _check_sources(self, graph: Graph, where: str) -> None:
        for index, step in enumerate(graph.instructions):
            if step.source not in self._sources:
                self.report.text(step.source, f"{where}, instruction {index}")
                self._sources.add(step.source)

    def _check_graph(self, graph: Graph, around: Surroundings) -> Operands:
        where = around.where
        self.report.limit(
            f"{where}: the number of values", len(graph.values), MAX_VALUES
        )
        steps = len(graph.instructions)
        self.report.limit(
            f"{where}: the number of instructions", steps, MAX_INSTRUCTIONS
        )
        size, peak = graph.scratch_nbytes, graph.peak_nbytes
        self.report.limit(f"{where}: the scratch arena", size, MAX_TENSOR_NBYTES)
        self.report.require(0 <= peak <= size, where, f"peak {peak} of {size} bytes")
        ValueChecker(graph, around, self.report).check()
        return self._check_instructions(graph, around)

    def _check_instructions(self, graph: Graph, around: Surroundings) -> Operands:
        """Check order, storage and signature of instructions; return operands."""
        known = self._define_inputs(graph, around)
        roots, types = known.roots, known.types
        keys = self._type_keys(types)
        operands: Operands = []
        workspaces: set[int] = set()
        for index, step in enumerate(graph.instructions):
            key, reads = self._key(step, keys)
            for value in reads:
                if value not in roots:
                    what = f"reads value {value} too early"
                    self._fail_step(around, index, step, what)
            if workspaces and not workspaces.isdisjoint(reads):
                what = "reads scratch memory that another instruction's blocks have"
                self._fail_step(around, index, step, what)
            operands.append(reads)
            if key not in self._fitting:
                self._check_fit(index, step, types, around)
                self._fitting.add(key)
            try:
                known.add_results(step)
            except BadResult as error:
                self._fail_step(around, index, step, str(error))
            if step.op in WITH_WORKSPACE:
                workspaces |= {*step.results[-1:]}
        what = "an output is scratch memory that an instruction's blocks have"
        self.report.require(workspaces.isdisjoint(graph.outputs), around.where, what)
        self._check_defined(graph, known, around)
        return operands

    def _define_inputs(self, graph: Graph, around: Surroundings) -> Definitions:
        known = Definitions(graph, around)
        for value in graph.inputs:
            try:
                known.add_input(value)
            except BadResult as error:
                self.report.fail(f"{around.where}, value {value}", str(error))
        return known

    def _check_defined(
        self, graph: Graph, known: Definitions, around: Surroundings
    ) -> None:
        """Check that at the end all outputs, and all other values, are defined."""
        roots = known.roots
        for value in graph.outputs:
            if value not in roots:
                self.report.fail(around.where, f"the output {value} is never defined")
        if len(roots) != len(graph.values):
            lost = next(i for i in range(len(graph.values)) if i not in roots)
            self.report.fail(f"{around.where}, value {lost}", "is never defined")

    def _fail_step(
        self, around: Surroundings, index: int, step: Instruction, what: str
    ) -> NoReturn:
        self.report.fail(place(around.where, index, step), what)

    def _key(
        self, step: Instruction, keys: Sequence[object]
    ) -> tuple[tuple[object, ...], tuple[int, ...]]:
        """Return the key under which an instruction's check is cached, and operands.

        Args:
            step: the instruction.
            keys: for each value, the object that stands for its type.
        """
        reads: list[int] = []
        parts: list[object] = [step.op]
        for argument in step.arguments:
            kind = type(argument)
            if kind is Ref:
                value = argument.value  # type: ignore[union-attr]
                reads.append(value)
                parts.append(keys[value])
            elif kind is tuple:
                ids, part = self._list_key(argument, keys)  # type: ignore[arg-type]
                reads += ids
                parts.append(part)
            else:
                # The type is part of the key, since 1, 1.0 and True are equal.
                parts.append(kind)
                parts.append(argument)
        parts.append(None)
        parts += [keys[value] for value in step.results]
        return tuple(parts), tuple(reads)

    def _list_key(
        self, items: tuple[Argument, ...], keys: Sequence[object]
    ) -> tuple[tuple[int, ...], tuple[object, ...]]:
        found = self._lists.get(id(items))
        if found is None:
            ids = tuple(item.value for item in items if isinstance(item, Ref))
            # A list without operands is keyed once; keeping it alive keeps its id
            # unique.
            part: tuple[object, ...] | None
            part = None if ids else tuple((type(item), item) for item in items)
            found = self._lists[id(items)] = items, ids, part
        _, ids, part = found
        if part is None:
            part = tuple(
                keys[item.value] if isinstance(item, Ref) else (type(item), item)
                for item in items
            )
        return ids, part

    def _check_fit(
        self,
        index: int,
        step: Instruction,
        types: list[TensorType],
        around: Surroundings,
    ) -> None:
        spec = OPS.get(step.op)
        if spec is None:
            self._fail_step(around, index, step, "there is no such op")
        try:
            check_signature(step, spec, types, around.sizes)
        except Misfit as error:
            self._fail_step(around, index, step, str(error))

    def _type_keys(self, types: list[TensorType]) -> list[object]:
        """Return, for each value, a quickly hashed object that stands for its type."""
        known = self._types
        for kind in types:
            if id(kind) not in known:
                known[id(kind)] = kind, object()
        return [known[id(kind)][1] for kind in types]
